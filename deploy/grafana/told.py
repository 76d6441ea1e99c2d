"""Descriptions: what the board's author says, then what the catalogue says of the family. Pure."""

from __future__ import annotations

import re

from shared.metrics.catalogue import BY_NAME


def told(first: str, *families: str) -> str:
    """A description as Markdown: first, and the meaning of each family below it.

    Raises KeyError for a family that the catalogue does not have.
    """
    return "\n\n".join(
        [first, *(f"`{name}`: {_plain(BY_NAME[name].meaning)}." for name in families)]
    )


def _plain(meaning: str) -> str:
    # Links of docs/metrics.md lead nowhere from inside Grafana.
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning)
