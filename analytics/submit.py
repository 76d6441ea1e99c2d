"""What spark-submit starts: `spark-submit analytics/submit.py JOB …`, the same jobs and options.

The package must be installed where executors run: data sources travel by name, not by value.
"""

from __future__ import annotations

from analytics.main import main

if __name__ == "__main__":
    main()
