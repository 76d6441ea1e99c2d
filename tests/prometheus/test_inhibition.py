"""Notifications that a real Alertmanager suppresses, by its own interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from deploy.prometheus.rules import ALERTS, ROOT
from tests.support.node import wait_until
from tests.support.prometheus import Alertmanager

SEVERITIES = {alert.name: alert.severity for alert in ALERTS}
NODE = {"broker": "g0", "replica": "n0"}
PAIR = {"broker": "g0", "group": "orders", "topic": "orders"}


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    config = ROOT / "deploy/prometheus/alertmanager.yml"
    with Alertmanager(tmp_path_factory.mktemp("alertmanager"), config) as server:
        yield server


CASES: list[tuple[str, list[tuple[str, Mapping[str, str]]], set[str]]] = [
    (
        "a node that does not answer silences what is said of it, and the copy that is missing",
        [
            ("TidemarkTargetDown", {**NODE, "service": "reput"}),
            ("TidemarkDispatchStuck", {**NODE, "service": "broker"}),
            ("TidemarkStoreNearlyFull", NODE),
            ("TidemarkNotReady", {"broker": "g0", "replica": "n1", "service": "broker"}),
            ("TidemarkUnderReplicated", {"broker": "g0"}),
            ("TidemarkMasterCount", {"broker": "g1"}),
            ("TidemarkDamage", {**NODE, "code": "corrupt-record"}),
        ],
        {"TidemarkTargetDown", "TidemarkNotReady", "TidemarkMasterCount", "TidemarkDamage"},
    ),
    (
        "a node that does not answer does not silence that its set has no master",
        [
            ("TidemarkTargetDown", {**NODE, "service": "ha"}),
            ("TidemarkMasterCount", {"broker": "g0"}),
            ("TidemarkGroupStopped", PAIR),
        ],
        {"TidemarkTargetDown", "TidemarkMasterCount", "TidemarkGroupStopped"},
    ),
    (
        "without a master replicas and dispatch are no news, of that set",
        [
            ("TidemarkMasterCount", {"broker": "g0"}),
            ("TidemarkUnderReplicated", {"broker": "g0"}),
            ("TidemarkReplicaLag", {"broker": "g0", "peer": "n1"}),
            ("TidemarkDispatchSlow", NODE),
            ("TidemarkSendsFail", NODE),
            ("TidemarkDispatchStuck", {"broker": "g1", "replica": "m0"}),
            ("TidemarkReplicaHalted", NODE),
        ],
        {"TidemarkMasterCount", "TidemarkDispatchStuck", "TidemarkReplicaHalted"},
    ),
    (
        "what is not dispatched no consumer of that set can read",
        [
            ("TidemarkDispatchStuck", NODE),
            ("TidemarkGroupFallingBehind", PAIR),
            ("TidemarkGroupStalled", {**PAIR, "broker": "g1"}),
            ("TidemarkGroupMessagesLost", PAIR),
        ],
        {"TidemarkDispatchStuck", "TidemarkGroupStalled", "TidemarkGroupMessagesLost"},
    ),
    (
        "what a slave has not dispatched is read from the master",
        [
            ("TidemarkSlaveDispatchStuck", NODE),
            ("TidemarkGroupStalled", PAIR),
            ("TidemarkDispatchSlow", NODE),
        ],
        {"TidemarkSlaveDispatchStuck", "TidemarkGroupStalled"},
    ),
    (
        "a group that stopped is not also slow; another topic of it may be",
        [
            ("TidemarkGroupStopped", PAIR),
            ("TidemarkGroupLagObjective", PAIR),
            ("TidemarkGroupFallingBehind", {**PAIR, "topic": "audit"}),
        ],
        {"TidemarkGroupStopped", "TidemarkGroupFallingBehind"},
    ),
    (
        "a full disk explains sends that fail and dispatch that stands still",
        [
            ("TidemarkStoreNearlyFull", NODE),
            ("TidemarkSendsFail", NODE),
            ("TidemarkDispatchStuck", NODE),
            ("TidemarkNotReady", {**NODE, "service": "broker"}),
            ("TidemarkStoreFillsUp", NODE),
            ("TidemarkDispatchErrors", {**NODE, "reason": "damaged-file"}),
        ],
        {"TidemarkStoreNearlyFull", "TidemarkDispatchErrors"},
    ),
    (
        "a slow disk explains slow sends; a connected copy that lags, a set that is short",
        [
            ("TidemarkSlowDisk", NODE),
            ("TidemarkPutSlow", {**NODE, "ack": "disk"}),
            ("TidemarkReplicaLag", {"broker": "g0", "peer": "n1"}),
            ("TidemarkUnderReplicated", {"broker": "g0"}),
        ],
        {"TidemarkSlowDisk", "TidemarkReplicaLag"},
    ),
    (
        "a name service that is down explains that brokers miss it, and no master that it has none",
        [
            ("TidemarkNamesDown", {"broker": "names", "replica": "names-0"}),
            ("TidemarkNamesNotRegistered", NODE),
            ("TidemarkMasterCount", {"broker": "g0"}),
            ("TidemarkNamesWithoutMaster", {"broker": "names", "replica": "names-1"}),
            ("TidemarkNamesIncomplete", {"broker": "names", "replica": "names-1"}),
        ],
        {"TidemarkNamesDown", "TidemarkMasterCount", "TidemarkNamesIncomplete"},
    ),
    (
        "without any name service that each of them is down is no news",
        [
            ("TidemarkNamesGone", {"broker": "names"}),
            ("TidemarkNamesDown", {"broker": "names", "replica": "names-0"}),
            ("TidemarkNamesDown", {"broker": "names", "replica": "names-1"}),
            ("TidemarkNamesNotRegistered", NODE),
            ("TidemarkNamesNearBound", {"broker": "names", "bound": "entries_max"}),
        ],
        {"TidemarkNamesGone", "TidemarkNamesNearBound"},
    ),
]


@pytest.mark.parametrize(("case", "firing", "notified"), CASES, ids=[case for case, _, _ in CASES])
def test_receivers_of_an_alert(
    alertmanager: Alertmanager,
    case: str,
    firing: list[tuple[str, Mapping[str, str]]],
    notified: set[str],
) -> None:
    cluster = case.replace(" ", "-")
    alertmanager.post(
        "/api/v2/alerts",
        [
            {
                "labels": {
                    "alertname": name,
                    "severity": SEVERITIES[name],
                    "cluster": cluster,
                    **labels,
                }
            }
            for name, labels in firing
        ],
    )
    wanted = {(name, cluster) for name in notified}

    def are_judged() -> bool:
        here = [each for each in alertmanager.alerts() if each["labels"]["cluster"] == cluster]
        states = [each["status"]["state"] for each in here]
        return len(here) == len(firing) and "unprocessed" not in states

    # An alert is judged when its group is first looked at: after group_wait.
    wait_until(are_judged, f"all of {case!r} to be judged", 90)
    wait_until(
        lambda: {each for each in alertmanager.notified() if each[1] == cluster} == wanted,
        f"exactly {sorted(notified)} to be notified",
        90,
    )
