"""What analytics found, for Prometheus: gauges of now, and history as a file. No Spark."""
