"""Tests of messages that wait."""
