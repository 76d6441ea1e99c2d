"""Tests of the broker of a node of a group."""
