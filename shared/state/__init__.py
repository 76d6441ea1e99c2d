"""The broker state in the log: records, snapshots, replay, and the JSON files that cache it."""
