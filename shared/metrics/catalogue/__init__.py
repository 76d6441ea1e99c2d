"""Every metric family of every service, by section of docs/metrics.md. Pure.

Help texts, that page, the rules and the dashboards are generated from it or checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from shared.metrics.catalogue.analytics import ANALYTICS
from shared.metrics.catalogue.dispatch import DISPATCH
from shared.metrics.catalogue.every import EVERY
from shared.metrics.catalogue.groups import GROUPS
from shared.metrics.catalogue.ha import HA
from shared.metrics.catalogue.log import LOG
from shared.metrics.catalogue.names import NAMES
from shared.metrics.catalogue.requests import REQUESTS
from shared.metrics.family import Family


class Section(NamedTuple):
    """A heading of the page, the services whose processes export it, and its families."""

    title: str
    services: tuple[str, ...]
    families: tuple[Family, ...]


SECTIONS: Final = (
    Section("Every process", ("broker", "reput", "ha", "names", "analytics"), EVERY),
    Section("Broker: requests and topics", ("broker",), REQUESTS),
    Section("Broker: consumer groups", ("broker",), GROUPS),
    Section("Broker: log and store", ("broker",), LOG),
    Section("Reput: dispatch", ("reput",), DISPATCH),
    Section("ha: replication", ("ha",), HA),
    Section("Names: broker groups and routes", ("names",), NAMES),
    Section("Analytics", ("analytics",), ANALYTICS),
)
BY_NAME: Final[Mapping[str, Family]] = {
    family.name: family for section in SECTIONS for family in section.families
}


def families_of(service: str) -> tuple[Family, ...]:
    """Return the families that a service exports, in the order of the page."""
    return tuple(
        family for section in SECTIONS if service in section.services for family in section.families
    )
