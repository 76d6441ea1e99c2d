"""Code that the services of one node share. It imports no service."""
