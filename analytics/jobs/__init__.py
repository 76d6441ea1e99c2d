"""The jobs. Each has an input range; a repeated run replaces only the results of that range."""
