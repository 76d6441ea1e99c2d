"""``tidemark support-bundle``: collects the data that remote support needs, and nothing more."""
