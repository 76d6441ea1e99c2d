"""What Prometheus and Alertmanager are given: rules as data, their files, and tests of them.

``python -m deploy.prometheus`` writes every generated file anew. Before: the catalogue of metrics
names what there is to ask for. After: an operator loads the files (docs/monitoring.md).
"""
