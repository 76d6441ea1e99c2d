"""Metrics of a node: the catalogue as data, instruments, and Prometheus' text format."""
