"""The packages for installers: a source distribution and a manylinux wheel."""
