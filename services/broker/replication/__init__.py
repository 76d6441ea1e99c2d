"""The broker of a node of a group: slave until ha grants it an epoch, then master for that."""
