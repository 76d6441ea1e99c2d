"""``tidemark doctor``: finds problems of a node's environment, before or while it runs."""
