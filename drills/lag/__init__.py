"""A small cluster with five groups whose lag has five known causes, analysed by the lag analytics.

``python -m drills.lag`` (``make lag``) starts nodes, producers and consumers as real
processes on the loopback, runs every job of the lag analytics on them, and ends with the report and
a table of planted and detected faults. All processes are stopped. The end-to-end test uses the same
stage, observed through a Prometheus.
"""
