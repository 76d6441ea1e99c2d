"""Run every benchmark: `python -m bench`."""

from __future__ import annotations

from bench import records

records.main()
