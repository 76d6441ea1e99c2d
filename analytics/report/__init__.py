"""One HTML file that people read, and the same facts as JSON."""
