"""Scrapes of targets, without a Prometheus server."""
