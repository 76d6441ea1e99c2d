"""The replication protocol as bytes: frames, payloads, handshake and versions. Pure."""
