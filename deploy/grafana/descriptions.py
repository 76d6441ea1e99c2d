"""Panel descriptions: the author's text, then the catalogue's text of each family. Pure."""

from __future__ import annotations

import re

from shared.metrics.catalogue import BY_NAME


def describe(first: str, *families: str) -> str:
    """Return a description as Markdown: first, and the meaning of each family below it.

    Raises KeyError for a family that is not in the catalogue.
    """
    return "\n\n".join(
        [first, *(f"`{name}`: {_plain(BY_NAME[name].meaning)}." for name in families)]
    )


def _plain(meaning: str) -> str:
    # Links of docs/metrics.md do not work inside Grafana.
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning)
