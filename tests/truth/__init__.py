"""Workloads whose lag, age and status are known exactly: the truth that analytics is held to."""
