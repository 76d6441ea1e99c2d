"""Chooses the format of a scrape by the Accept header's ranges and their weights. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from shared.metrics.text import Format

_RANGES_MAX: Final = 32
"""Number of ranges of a header that are read; the rest is ignored."""


class _Offer(NamedTuple):
    """A format in the terms of media ranges."""

    form: Format
    type: str
    subtype: str
    version: str


_OFFERS: Final = (  # in the order of preference where a scraper has none
    _Offer(Format.TEXT, "text", "plain", "0.0.4"),
    _Offer(Format.OPENMETRICS, "application", "openmetrics-text", "1.0.0"),
)


def choose(accept: str | None) -> Format:
    """Return the format with the highest weight; plain text if the scraper has no preference.

    accept: the header, None without one. Of the ranges that match a format, the weight of the most
    specific one counts (RFC 9110, 12.5.1). If none matches, the result is plain text as well,
    because any answer is more useful than 406.
    """
    if accept is None:
        return Format.TEXT
    ranges = [_range(part) for part in accept.split(",")[:_RANGES_MAX]]
    best, best_weight = Format.TEXT, 0.0
    for offer in _OFFERS:
        fitting = [(each.exactness, each.weight) for each in ranges if each.fits(offer)]
        weight = max(fitting)[1] if fitting else 0.0
        if weight > best_weight:
            best, best_weight = offer.form, weight
    return best


class _Range(NamedTuple):
    """One media range."""

    type: str
    subtype: str
    version: str | None
    weight: float

    @property
    def exactness(self) -> int:
        """Number of parts that are specified; the most specific matching range counts."""
        said = (self.type != "*", self.subtype != "*", self.version is not None)
        return sum(said)

    def fits(self, offer: _Offer) -> bool:
        """Whether the range matches the format."""
        return (
            self.type in ("*", offer.type)
            and self.subtype in ("*", offer.subtype)
            and self.version in (None, offer.version)
        )


def _range(text: str) -> _Range:
    name, *parameters = (part.strip() for part in text.split(";"))
    type_, _, subtype = name.lower().partition("/")
    version, weight = None, 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        value = value.strip().strip('"')
        match key.strip().lower():
            case "version":
                version = value
            case "q":
                weight = _weight(value)
    return _Range(type_, subtype or "*" * (type_ == "*"), version, weight)


def _weight(text: str) -> float:
    """Parse a weight from 0 to 1; an invalid weight counts as 0."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
