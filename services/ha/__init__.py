"""ha: replicates the log's bytes to slaves and decides who is master (docs/replication.md).

The decisions are in ``replica`` and the cores it is made of: events in, effects out, no socket,
file or clock inside. Everything else here carries effects out and brings events in.
"""
