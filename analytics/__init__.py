"""Lag analytics: lag from metrics and from the store's own files, as tables on Spark."""
