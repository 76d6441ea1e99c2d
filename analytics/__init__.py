"""Lag analytics: what the metrics and the store's own files say about lag, as tables on Spark."""
