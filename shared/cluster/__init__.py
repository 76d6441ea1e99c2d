"""What the three services of a node agree on in a group: settings, time rules, who may append."""
