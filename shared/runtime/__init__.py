"""Process support of every service: configuration, logs, health probes and wake-ups."""
