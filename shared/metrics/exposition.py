"""Text formats of a scrape: ``prometheus_client`` writes all but the lines of our label sets.

Step before: ``registry`` took the values. Step after: ``endpoint`` sends the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from shared.metrics.samples import Buckets, Samples, metric_of

Taken = Samples | Buckets | Metric
"""Values of one family."""
_RANGES_MAX: Final = 32
"""Number of ranges of an Accept header that are read; the rest is ignored."""


class Format(NamedTuple):
    """A text format of the library."""

    encode: Callable[[Collector], bytes]
    content_type: str


class Only(NamedTuple):
    """Metrics for one call of an encoder."""

    metrics: Sequence[Metric] = ()

    def collect(self) -> Sequence[Metric]:
        """Return the metrics."""
        return self.metrics


TEXT: Final = Format(generate_latest, CONTENT_TYPE_PLAIN_0_0_4)
OPENMETRICS: Final = Format(openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST)


def pieces(taken: Sequence[Taken], form: Format) -> Iterator[bytes]:
    """Yield the whole text in pieces of whole lines. Each family's values are freed once they are
    formatted: freeing those of 100,000 series at once would take milliseconds."""
    end = form.encode(Only())
    waiting = list(reversed(taken))
    del taken
    while waiting:
        family = waiting.pop()
        if isinstance(family, Metric):
            yield form.encode(Only([family])).removesuffix(end)
        else:
            yield form.encode(Only([metric_of(family.family)])).removesuffix(end)
            for lines in family.lines():
                yield lines.encode()
    yield end


def choose(accept: str | None) -> Format:
    """Return the format with the highest weight in an Accept header; plain text if they are equal.

    ``choose_encoder`` of the library ignores weights, and fails for a version that is not a number.
    """
    weights = {TEXT: 0.0, OPENMETRICS: 0.0}
    for part in (accept or "").lower().split(",")[:_RANGES_MAX]:
        name, *rest = "".join(part.replace('"', "").split()).split(";")
        parameters = dict(each.partition("=")[::2] for each in rest)
        if name in ("text/plain", "text/*", "*/*", "*"):
            form = TEXT
        elif name == "application/openmetrics-text" and parameters.get("version") in _VERSIONS:
            form = OPENMETRICS
        else:
            continue
        weights[form] = max(weights[form], _weight(parameters.get("q", "1")))
    return max(weights, key=weights.__getitem__)


_VERSIONS: Final = (None, "1.0.0")


def _weight(text: str) -> float:
    """Parse a weight from 0 to 1; an invalid weight counts as 0."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
