"""What the services of one node share. Imports no service."""
