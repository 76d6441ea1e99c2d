"""A small cluster with five groups whose lag has five known causes, and the analytics run over it.

``python -m drills.lag`` (``make lag``) starts nodes, producers and consumers as real
processes on the loopback, runs every job of the lag analytics over them, and ends with the report
and a table: what was planted, what was found. Nothing is left running. The same stage serves the
end-to-end test, which watches it through a Prometheus.
"""
