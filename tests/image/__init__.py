"""Proof of the image without a registry: built, run confined, a failover. ``make image-proof``."""
