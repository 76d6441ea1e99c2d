"""What a node measures: the catalogue as data, instruments, the text that Prometheus reads."""
