"""Bytes to values and back, for every file of a store. Pure: no file, clock, socket or log."""
