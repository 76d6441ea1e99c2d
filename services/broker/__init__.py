"""The broker: accepts sends, serves reads, and appends to the commit log on a master."""
