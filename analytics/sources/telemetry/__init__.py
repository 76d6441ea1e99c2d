"""Positions from the telemetry journal of brokers, without a Prometheus server."""
