"""The lease: one object that holds lock, epoch and in-sync set, changed by compare-and-set only."""
