"""Benchmarks: one module per figure; `python -m bench` runs all of them; see bench/README.md."""
