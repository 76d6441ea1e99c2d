"""The real store inside pytest. Top layer: may import everything."""
