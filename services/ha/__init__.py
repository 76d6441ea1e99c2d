"""ha: replicates the log's bytes to slaves and elects the master (docs/replication.md).

``core`` decides: events in, effects out, without sockets, files or clocks. ``wire`` encodes the
protocol between nodes. ``lease`` stores the object that names the master. ``shell`` runs effects on
sockets, files and threads. ``service`` builds and runs the parts.
"""
