"""The state in the log: records, snapshot, replay, and the JSON files that cache them."""
