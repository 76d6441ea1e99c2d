"""The image: its Dockerfile, a compose file for a laptop, and the selection of its packages."""
