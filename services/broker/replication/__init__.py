"""The roles of a broker: master, in a group or alone, and slave until ha grants an epoch."""
