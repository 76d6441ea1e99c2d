"""One HTML file for people, and the same facts as JSON."""
