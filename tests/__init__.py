"""Tests mirror the tree: unit, simulation, processes, golden."""
