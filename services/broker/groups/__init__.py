"""Consumer groups: members, offsets, fetch, lag, nacks."""
