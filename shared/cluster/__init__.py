"""Shared definitions of a replication group: settings, time rules, append permission."""
