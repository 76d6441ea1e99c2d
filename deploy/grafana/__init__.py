"""Grafana dashboards, generated: ``make dashboards`` writes dashboards/*.json from boards/*.py.

Boards are values (``panels``, ``queries``); ``drawing`` and ``frame`` turn them into Grafana's JSON
with the Foundation SDK. Every metric is one of shared/metrics/catalogue or of the recording rules
in deploy/prometheus. docs/dashboards.md says what each board is for and how to add a panel.
"""
