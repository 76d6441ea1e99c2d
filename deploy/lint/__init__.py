"""``make lint-deploy``: renders every overlay, and holds it against schemas and rules."""
