"""What a registry shows, for tests: by the text of each line, or by name and labels."""

from __future__ import annotations

from collections.abc import Mapping

from shared.metrics.exposition import TEXT, Format, pieces
from shared.metrics.family import Number
from shared.metrics.registry import Registry
from shared.metrics.samples import LabelSet

_AN_HOUR_S = 3600.0


def exposed(registry: Registry, form: Format = TEXT, *, now_s: float = _AN_HOUR_S) -> str:
    """The whole text of one scrape."""
    taken = [each for each in registry.take(now_s) if each is not None]
    return b"".join(pieces(taken, form)).decode()


def missing(registry: Registry) -> list[str]:
    """Names of the service's families that have no source of values."""
    text = exposed(registry)
    return [each.name for each in registry.families if f"# TYPE {each.name} " not in text]


def samples(registry: Registry, *, now_s: float = _AN_HOUR_S) -> dict[str, Number]:
    """All samples by name and labels as they are written."""
    lines = exposed(registry, now_s=now_s).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: _number(value) for name, value in pairs}


def sample(registry: Registry, name: str, labels: Mapping[str, str] | None = None) -> Number | None:
    """One sample; labels in the order of the catalogue. None: there is none."""
    given = labels or {}
    return samples(registry).get(name + LabelSet(tuple(given), tuple(given.values())).text)


def _number(text: str) -> Number:
    return int(text) if text.lstrip("-").isdigit() else float(text)
