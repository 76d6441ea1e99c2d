"""Configuration for Prometheus and Alertmanager: rules as data, their files, and their tests.

``python -m deploy.prometheus`` writes every generated file. Step before: the catalogue of metrics
defines the series. Step after: an operator loads the files (docs/monitoring.md).
"""
