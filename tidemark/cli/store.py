"""``tidemark store``: look at a store's files, check them, rebuild what is derived."""

from __future__ import annotations

import click


@click.group()
def store() -> None:
    """A store's files, without a broker."""
