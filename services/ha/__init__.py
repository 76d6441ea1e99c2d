"""ha: replicates the log's bytes to slaves and decides who is master (docs/replication.md).

``core`` decides: events in, effects out, no socket, file or clock inside. ``wire`` is the protocol
between nodes as bytes, ``lease`` the object that names the master, ``shell`` what runs effects on
sockets, files and threads. ``service`` builds and runs the parts.
"""
