"""Delayed messages: stored at their send, delivered when they are due, listed, cancelled."""
