"""``make lint-deploy``: renders every overlay and checks it against schemas and rules."""
