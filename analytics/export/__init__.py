"""Results of analytics for Prometheus: gauges of now, and history as a file. No Spark."""
