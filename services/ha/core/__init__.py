"""Decisions of replication: state machines that turn events into effects, without any I/O."""
