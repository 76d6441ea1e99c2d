"""Compiled twins of the hot functions of ``tidemark.formats``; see ``twins`` for who uses them.

Each has the name, the contract and the tests of its pure Python original, and is not described a
second time here. Bounds are checked before any byte is touched, with values loaded once: what is
read may lie in a mapping that another process writes to.
"""
