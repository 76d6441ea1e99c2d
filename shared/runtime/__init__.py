"""What every service process needs around its work: configuration, logs, probes, wake-ups."""
