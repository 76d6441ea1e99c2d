"""``python -m deploy.prometheus``: write the generated files, or compare them (``rules``)."""

from __future__ import annotations

import sys

from deploy.prometheus.rules import main

if __name__ == "__main__":
    sys.exit(main())
