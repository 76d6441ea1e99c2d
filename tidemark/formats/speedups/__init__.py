"""Native implementation of the hot functions of ``tidemark.formats``; ``native`` chooses it.

Each function has the name, the contract and the tests of its pure Python version and is documented
there. Bounds are checked before any byte is accessed, with values loaded once, because the bytes
may be in a mapping to which another process writes.
"""
