"""The state in the log: topics, state records and snapshots, the JSON files that cache them."""
