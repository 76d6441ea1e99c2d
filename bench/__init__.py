"""Benchmarks: one module per figure, `python -m bench` runs them all."""
