"""Tests of the part that this folder is named after."""
