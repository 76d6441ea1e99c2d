"""Benchmarks: one module per figure, `python -m bench` runs them all; see bench/README.md."""
