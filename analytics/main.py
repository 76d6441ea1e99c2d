"""``tidemark-analytics``: all jobs; ``spark-submit analytics/submit.py`` does the same."""

from __future__ import annotations

import click


@click.group()
def main() -> None:
    """Lag analytics of Tidemark, on Spark."""
