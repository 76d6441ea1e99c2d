"""Test cases of the rules, by area: each is a healthy cluster with some differences. Pure.

``promtool`` runs the files generated from them. At each time exactly the named alerts fire, so
every case also verifies that all others stay silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.support.alert_cases.analytics import ANALYTICS_CASES
from tests.support.alert_cases.consumers import CONSUMER_CASES
from tests.support.alert_cases.healthy import Case
from tests.support.alert_cases.names import NAMES_CASES
from tests.support.alert_cases.nodes import NODE_CASES
from tests.support.alert_cases.replication import REPLICATION_CASES
from tests.support.alert_cases.requests import REQUEST_CASES
from tests.support.alert_cases.storage import STORAGE_CASES

CASES: Final[Mapping[str, tuple[Case, ...]]] = {
    "consumers": CONSUMER_CASES,
    "nodes": NODE_CASES,
    "requests": REQUEST_CASES,
    "storage": STORAGE_CASES,
    "replication": REPLICATION_CASES,
    "names": NAMES_CASES,
    "analytics": ANALYTICS_CASES,
}
