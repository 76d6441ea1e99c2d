"""Raw samples of a Prometheus server, by time slice."""
