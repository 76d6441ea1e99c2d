"""The broker of a node of a group: a slave until ha grants it an epoch, then the master for it."""
