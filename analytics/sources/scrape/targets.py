"""Targets of scrapes and their labels: Prometheus' lists of targets as JSON. Pure.

    [{"targets": ["127.0.0.1:8081"], "labels": {"cluster": "c", "broker": "g0", "replica": "n0",
      "service": "broker"}}]

An address without a scheme is ``http://ADDRESS/metrics``; the labels ``__scheme__`` and
``__metrics_path__`` change them. Step before: an option or a file. Step after: ``scraper``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from analytics.sources.option_values import BadOption

_WANTED: Final = 'a list like [{"targets": ["host:port"], "labels": {"cluster": "c"}}]'


class Target(NamedTuple):
    """One process that exports metrics."""

    url: str
    labels: tuple[tuple[str, str], ...]
    """Sorted labels, including ``instance``."""

    @property
    def instance(self) -> str:
        """Name of the target."""
        return dict(self.labels)["instance"]

    @property
    def set_name(self) -> str:
        """Cluster and broker set; one task reads all targets that share it."""
        labels = dict(self.labels)
        return f"{labels.get('cluster', '')}/{labels.get('broker', '')}"


def parse(text: str) -> tuple[Target, ...]:
    """Return the targets of a list, sorted, without duplicates. Raises BadOption."""
    try:
        entries = json.loads(text)
        found = {target for entry in entries for target in _of_entry(entry)}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadOption("targets", text[:80], f"{_WANTED} ({error})") from error
    names = [target.instance for target in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadOption("targets", ", ".join(twice), "each address once")
    return tuple(sorted(found))


def _of_entry(entry: dict[str, Any]) -> Sequence[Target]:
    labels = {str(name): str(value) for name, value in entry.get("labels", {}).items()}
    scheme = labels.pop("__scheme__", "http")
    path = labels.pop("__metrics_path__", "/metrics")
    made = []
    for address in entry["targets"]:
        url = address if "://" in address else f"{scheme}://{address}{path}"
        _check(url)
        instance = url.split("://", 1)[1].split("/", 1)[0]
        own = {"instance": instance, **labels}
        made.append(Target(url, tuple(sorted(own.items()))))
    return made


def _check(url: str) -> None:
    """Check an address, because an invalid one would end the scraper. Raises ValueError."""
    parts = urlsplit(url)
    known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not known or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not an address")
