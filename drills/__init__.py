"""Fault drills: a group of real processes under load, one fault after another, and a judgement.

``python -m drills --list`` names them, ``tidemark drill NAME`` runs them. Numbered
messages go in, every answer and every message that a consumer saw is written down (``ledger``),
and what the log of the last master holds afterwards decides (``checker``). Each node may live in a
network namespace of its own, in which it can be cut off from others (``namespaces``).
"""
