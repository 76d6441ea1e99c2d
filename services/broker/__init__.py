"""The broker: accepts and serves; appends the commit log on a master."""
