"""Peers that know the secret but do not belong here, or send what was not requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from drills.hostile_peer import HostilePeer
from services.ha.lease.value import Holder
from services.ha.wire import payloads
from services.ha.wire.frames import FrameType
from services.ha.wire.handshake import Identity, Refused
from services.ha.wire.payloads import (
    Append,
    Payload,
    Promise,
    PromiseOk,
    PromisePurpose,
    Status,
    StatusOk,
)
from tests.processes.test_replication import REPLICATED, make_topic, send_acked
from tests.support.cluster import Cluster
from tests.support.node import SMALL_STORE, wait_until
from tidemark.formats.checkpoint import Slot

EPOCH_STEP: Final = 5
ASKED_MS: Final = 12_345
"""Only the answer to the STATUS that carries it has it, not a status that a node sends unasked."""
ANSWER_TIMEOUT_S: Final = 60.0


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes in sync, n0 the master."""
    # Not the local profile: on a busy machine its short lease would make n1 the master.
    with Cluster(tmp_path_factory.mktemp("group"), profile="default") as cluster:
        cluster.start()
        assert cluster.wait_master() == "n0"
        cluster.wait_in_sync()
        make_topic(cluster, "n0")
        yield cluster


def claimed(name: str, **changed: Any) -> Identity:
    """The introduction of a peer: true for n0 and n1 except for the incarnation."""
    size = int(str(SMALL_STORE["commit_log_file_size"]))
    return Identity("test", "g0", name, "ab" * 16, size)._replace(**changed)


def dialled(cluster: Cluster, target: str) -> HostilePeer:
    """A connection to the replication port of a node."""
    port = cluster.ports[target]["replication"]
    return HostilePeer(cluster.hosts[target], port, timeout_s=ANSWER_TIMEOUT_S)


@contextmanager
def connected(cluster: Cluster, target: str, identity: Identity) -> Iterator[HostilePeer]:
    """A peer that has proved to know the secret."""
    secret = cluster.secret_path.read_bytes()
    nodes = (*cluster.names, identity.node)
    with dialled(cluster, target) as peer:
        peer.prove(identity, secret=secret, wanted=target, nodes=nodes)
        yield peer


def say_until(
    is_wanted: Callable[[Payload], bool], cluster: Cluster, *frames: tuple[int, Payload]
) -> None:
    """Say these (epoch, payload) to n1 as a peer that claims to be n0, until n1 sends the wanted
    answer. The true n0 may connect again at any time, which closes this connection."""

    def is_answered() -> bool:
        try:
            with connected(cluster, "n1", claimed("n0")) as peer:
                for epoch, payload in frames:
                    peer.say(epoch, payload)
                while (frame := peer.receive()) is not None:
                    if is_wanted(payloads.parse(frame)):
                        return True
        except (Refused, OSError):
            return False
        return False

    wait_until(is_answered, "the answer of n1")


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (claimed("n1", cluster="elsewhere"), "foreign-cluster"),
        (claimed("n1", group="g1"), "foreign-group"),
        (claimed("n7"), "unknown-node"),
        (claimed("n0"), "same-name"),
        (claimed("n1", file_size=12_345), "file-size-differs"),
    ],
)
def test_a_node_that_does_not_fit_gets_the_reason(
    group: Cluster, identity: Identity, reason: str
) -> None:
    with pytest.raises(Refused, match=f"{reason}: n0 says"), connected(group, "n0", identity):
        pass


def test_a_node_without_the_secret_gets_no_information(group: Cluster) -> None:
    with dialled(group, "n0") as peer:
        challenge = peer.receive()
        assert challenge is not None
        assert challenge.type is FrameType.CHALLENGE
    with dialled(group, "n0") as peer:
        wrong = b"not the secret, but long enough"
        with pytest.raises(Refused, match="wrong-secret"):
            peer.prove(claimed("n1"), secret=wrong, wanted="n0", nodes=group.names)


def test_unrequested_bytes_are_appended_nowhere(group: Cluster) -> None:
    send_acked(group, "n0", "before")
    epoch, end = group.epoch(), group.slot("n1", Slot.WRITTEN)
    evil = epoch, Append(epoch, 0, end, 1 << 40, 1, 4, b"evil")

    # The answer to the second shows that the first has been processed.
    def is_answer(answer: Payload) -> bool:
        return isinstance(answer, StatusOk) and answer.asked_ms == ASKED_MS

    say_until(is_answer, group, evil, (epoch, Status(ASKED_MS)))
    assert group.slot("n1", Slot.CONFIRM) <= group.slot("n0", Slot.WRITTEN)
    assert send_acked(group, "n0", "after") == REPLICATED
    group.compare_logs()


def alarms(cluster: Cluster, name: str) -> set[str]:
    """Codes of the alarms that a node has."""
    return {alarm["code"] for alarm in cluster.status(name).get("alarms", [])}


def refuses_sends(cluster: Cluster) -> bool:
    """Whether both brokers answer that they are not the master."""
    urls = [f"{node.broker_admin_url}/primary" for node in cluster.nodes.values()]
    return all(cluster.nodes["n0"].get_json(url)[0] == 503 for url in urls)


def test_an_epoch_without_a_holder_stops_the_group_until_the_lease_is_recreated(
    group: Cluster,
) -> None:
    # Any peer with the secret can have an epoch promised. The promise stands: the lease, which has
    # an older one, might be a restored backup, so no node takes it without an operator.
    assert send_acked(group, "n0", "before the promise") == REPLICATED
    epoch = group.epoch()
    unknown = Holder("n0", "ab" * 16, "00" * 8)
    promise = epoch + EPOCH_STEP, Promise(PromisePurpose.NEW_TERM, unknown)
    say_until(lambda answer: isinstance(answer, PromiseOk), group, promise)
    wait_until(lambda: "lease-went-backwards" in alarms(group, "n0"), "the alarm")
    wait_until(lambda: refuses_sends(group), "both nodes to stop serving")

    def is_made() -> bool:
        return group.command("n0", "recreate-lease")[0] == 200

    wait_until(is_made, "the lease to be made again")
    master = group.wait_master()
    assert group.epoch() > epoch + EPOCH_STEP
    group.wait_in_sync()
    assert send_acked(group, master, "after the promise") == REPLICATED
    group.compare_logs()
    wait_until(lambda: group.status("n0").get("alarms") == [], "the alarm to end")
