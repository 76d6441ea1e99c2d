"""Grafana dashboards, generated: ``make dashboards`` writes dashboards/*.json from boards/*.py.

Boards are values (``panels``, ``queries``); ``drawing`` and ``frame`` turn them into Grafana JSON
with the Foundation SDK. Every metric is in shared/metrics/catalogue or in the recording rules of
deploy/prometheus. docs/dashboards.md describes each board and how to add a panel.
"""
