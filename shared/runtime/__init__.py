"""What every service needs to run: configuration, logs, metrics, lifecycle, health, doorbells."""
