"""Fault drills: a replicated group of real processes under load, one fault after another, and
checks.

``python -m drills --list`` lists the drills, ``tidemark drill NAME`` runs them. The workload sends
numbered messages. ``ledger`` records every response and every consumed message, and ``checker``
compares them with the log of the last master. Each node can run in a network namespace of its own,
which can be cut off from the others (``namespaces``).
"""
