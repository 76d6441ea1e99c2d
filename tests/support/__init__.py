"""Strategies, the simulated disk, real processes, assertions that speak the domain."""
