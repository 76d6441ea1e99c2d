"""``tidemark cluster rotate-secret``: what is sent to whom, when, and what is said of the rest."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from shared.cluster.group_secret import (
    Fingerprints,
    Recipient,
    RotationStep,
    Secrets,
    after,
    fingerprint,
    unseal,
)
from tidemark.cli import cluster_secret
from tidemark.cli.cluster_calls import ClusterCalls
from tidemark.cli.cluster_secret import Rotation, SecretsDiffer
from tidemark.errors import ClusterRefused, Unreachable

OLD, NEW, THIRD = b"the old secret 16", b"the new secret 16", b"a third secret 16"
STATES = (Secrets(OLD, (OLD,)), Secrets(OLD, (OLD, NEW)), Secrets(NEW, (NEW, OLD)))
MARKS = {each: fingerprint(each, "tidemark", "g0") for each in (OLD, NEW, THIRD)}


class SecretGroup(ClusterCalls):
    """A group in memory: each node has its secrets and takes sealed steps."""

    def __init__(self, **nodes: Secrets) -> None:
        super().__init__([])
        self.nodes = nodes
        self.writable = True
        self.silent: set[str] = set()
        self.names: list[str] = []
        self.leads_to: dict[str, str] = {}
        self.steps: list[tuple[str, str]] = []

    async def name_services(self) -> list[str]:
        return self.names

    async def view(self) -> dict[str, Any]:
        nodes = [{"node": name, "admin": name} for name in self.nodes]
        return {"cluster": "tidemark", "group": "g0", "nodes": nodes}

    def seen(self, node: str) -> Fingerprints:
        secrets = self.nodes[node]
        return Fingerprints(MARKS[secrets.proved], tuple(MARKS[each] for each in secrets.accepted))

    async def own_view(self, admin: str) -> dict[str, Any]:
        if admin in self.silent:
            raise Unreachable(f"{admin} does not answer.")
        node = self.leads_to.get(admin, admin)
        facts = {"node": node, "file": "/etc/s", "writable": self.writable, "challenge": "7f"}
        return {"secret": self.seen(node)._asdict() | facts}

    async def at_port(self, node: str, command: str, order: Any) -> dict[str, Any]:
        step, sealed = RotationStep(order["step"]), base64.b64decode(order["sealed"])
        own = Recipient("tidemark", "g0", node, "7f")
        new = unseal(sealed, self.nodes[node].accepted, step, own, self.seen(node))
        assert (command, new) == ("rotate-secret", NEW)
        self.nodes[node] = after(step, NEW, self.nodes[node])
        self.steps.append((step.value, node))
        return {}


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cluster_secret, "POLL_S", 0.001)
    path = tmp_path / "secret"
    path.write_bytes(OLD + b"\n")
    return path


def rotate(group: SecretGroup, key: Path | None, timeout_s: float = 60.0) -> None:
    asyncio.run(Rotation(group, NEW, key, timeout_s=timeout_s).run())


def test_a_step_is_sent_to_every_node_before_the_next_step_begins(key: Path) -> None:
    group = SecretGroup(n0=STATES[0], n1=STATES[0])
    rotate(group, key)
    wanted = [(step, node) for step in ("accept", "prove", "forget") for node in ("n0", "n1")]
    assert group.steps == wanted
    assert set(group.nodes.values()) == {Secrets(NEW, (NEW,))}


@pytest.mark.parametrize("other", range(3))
@pytest.mark.parametrize("one", range(3))
def test_a_repetition_continues_from_what_each_node_shows(key: Path, one: int, other: int) -> None:
    if abs(one - other) > 1:
        return  # never so: a step waits for every node
    group = SecretGroup(n0=STATES[one], n1=STATES[other])
    key.write_bytes(STATES[one].proved)  # the file of n0, on which the command runs
    rotate(group, key)
    assert set(group.nodes.values()) == {Secrets(NEW, (NEW,))}
    assert len(group.steps) == (3 - one) + (3 - other), "nothing is sent twice"


def test_nodes_that_lack_a_step_are_named_and_the_next_step_is_not_begun(
    key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = SecretGroup(n0=STATES[0], n1=STATES[0])
    group.silent = {"n1"}
    with pytest.raises(SecretsDiffer, match="n1 does not accept the new secret yet") as error:
        rotate(group, key, timeout_s=0.05)
    assert "n1 does not answer" in error.value.detail
    assert "n0" not in error.value.detail
    assert group.steps == [("accept", "n0")]
    assert capsys.readouterr().err.count("waiting") == 1


def test_a_node_is_not_counted_by_the_status_of_another_one(key: Path) -> None:
    group = SecretGroup(n0=STATES[0], n1=STATES[0])
    group.leads_to = {"n1": "n0"}
    with pytest.raises(SecretsDiffer, match="n1 does not accept the new secret yet") as error:
        rotate(group, key, timeout_s=0.05)
    assert "n1 leads to n0" in error.value.detail
    assert group.steps == [("accept", "n0")]


@pytest.mark.parametrize("names", [[], ["http://names:9870"]])
def test_name_services_that_may_share_the_secret_are_named(
    key: Path, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    group = SecretGroup(n0=STATES[0])
    group.names = names
    rotate(group, key)
    assert capsys.readouterr().err.count("name services: http://names:9870.") == len(names)


@pytest.mark.parametrize("by_hand", [True, False])
def test_where_ha_cannot_write_the_command_says_what_to_put_where(
    key: Path, by_hand: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    group = SecretGroup(n0=STATES[0])
    group.writable = by_hand
    with pytest.raises(SecretsDiffer):
        rotate(group, None if by_hand else key, timeout_s=0.05)
    assert capsys.readouterr().err.count("n0: write the new secret to /etc/s.also") == 1
    assert not group.steps


def test_a_third_secret_is_not_replaced(key: Path) -> None:
    group = SecretGroup(n0=Secrets(OLD, (OLD, THIRD)))
    with pytest.raises(ClusterRefused, match="another rotation is unfinished"):
        rotate(group, key)
    assert not group.steps


def test_a_new_secret_with_the_fingerprint_of_the_old_is_refused(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The status would show every step as taken, and the group would end with two secrets.
    monkeypatch.setattr(cluster_secret, "fingerprint", lambda *_: MARKS[OLD])
    group = SecretGroup(n0=STATES[0])
    with pytest.raises(ClusterRefused, match="has the fingerprint of the present one"):
        rotate(group, key)
    assert not group.steps


@pytest.mark.parametrize("size", [0, 15, 4097])
def test_a_file_that_is_no_secret_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "new"
    path.write_bytes(b"x" * size)
    with pytest.raises(ClusterRefused, match="are a secret"):
        cluster_secret.read_secret_file(path)
    with pytest.raises(ClusterRefused, match="No such file"):
        cluster_secret.read_secret_file(tmp_path / "missing")
