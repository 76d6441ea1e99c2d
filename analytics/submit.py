"""Entry point for spark-submit: `spark-submit analytics/submit.py JOB …`, the same jobs and
options.

The package must be installed on the executors, because data sources are sent by name.
"""

from __future__ import annotations

from analytics.main import main

if __name__ == "__main__":
    main()
