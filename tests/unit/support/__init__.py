"""Tests of what the tests stand on."""
