"""The image: its Dockerfile, the compose file of a laptop, what picks its packages."""
