"""A workload with known answers: tests and benches of the analytics, never the product, use it."""
