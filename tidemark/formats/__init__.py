"""Codecs for every file of a store: bytes to values and back. Pure: no I/O, clock or log."""
