"""The disk shell over the formats: every file of a store has its reader here."""
