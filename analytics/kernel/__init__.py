"""Rules and algorithms: pure functions from Arrow tables to Arrow tables."""
