"""A simulated cluster of broker groups, name services and clients, in one process.

Clients, routes, registrations, name services, consumer groups and drains run their own code in
virtual time, over a simulated network. Only the log of a broker group is a model (``group_log``).
``world`` builds and runs one history, ``judge`` has the invariants.
"""
