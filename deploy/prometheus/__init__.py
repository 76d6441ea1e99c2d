"""Configuration for Prometheus and Alertmanager (docs/monitoring.md).

The rules are in ``rules/*.yml``; ``rules.py`` generates the object of the Prometheus operator.
"""
