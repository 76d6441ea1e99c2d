"""``tidemark support-bundle``: what somebody needs who helps from afar, and nothing more."""
