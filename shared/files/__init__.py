"""Readers of all store files: the I/O layer over ``tidemark.formats``."""
