"""``tidemark doctor``: what is wrong with a node's surroundings, before or while it runs."""
