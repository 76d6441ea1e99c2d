"""Readers of Prometheus, scrapes, store files and topics: batches, with Spark and without."""
