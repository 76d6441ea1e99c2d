"""What clients are answered equals a model, whatever brokers register and whenever they stop."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.names.core.completeness import SETTLE_S
from services.names.core.directory import Directory
from shared.cluster.routes import EXPIRE_S, Registration, Role, Route
from shared.runtime.media_types import Encoding
from tests.unit.names.registering import directory, queues, said
from tidemark.errors import RegistrationRefused, RouteIncomplete, UnknownTopic

GROUPS, NODES, TOPICS = ("g0", "g1"), ("n0", "n1"), ("a", "b", "c")


Shown = tuple[str, str | None, list[tuple[str, Role]]]
"""A broker group of an answer: name, master, nodes with their roles."""


class Step(NamedTuple):
    group: str
    node: str
    role: Role
    epoch: int
    counter: int
    topics: frozenset[str]
    waits_s: float


STEPS = st.lists(
    st.builds(
        Step,
        group=st.sampled_from(GROUPS),
        node=st.sampled_from(NODES),
        role=st.sampled_from(["master", "slave"]),
        epoch=st.integers(1, 3),
        counter=st.integers(0, 3),
        topics=st.frozensets(st.sampled_from(TOPICS)),
        waits_s=st.sampled_from([0.0, 10.0, EXPIRE_S + 1]),
    ),
    max_size=25,
)


class Model:
    """The rules again, without indexes, differences and kept answers."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[str, str], tuple[Step, float]] = {}
        self.masters: dict[str, str | None] = {}
        self.epochs: dict[str, int] = {}
        self.topics: dict[str, frozenset[str]] = {}

    def register(self, step: Step, now_s: float) -> bool:
        key = step.group, step.node
        known = self.nodes.get(key)
        if known is not None and (step.epoch, step.counter) < (known[0].epoch, known[0].counter):
            return False
        master = self.masters.get(step.group)
        if step.role == "master":
            if master not in (None, step.node) and step.epoch <= self.epochs[step.group]:
                return False
            self.masters[step.group], self.epochs[step.group] = step.node, step.epoch
            self.topics[step.group] = step.topics
        elif master == step.node:
            self.masters[step.group] = None
        self.nodes[key] = step, now_s
        return True

    def expire(self, now_s: float) -> None:
        for (group, node), (_, renewed_s) in list(self.nodes.items()):
            if now_s - renewed_s > EXPIRE_S:
                del self.nodes[group, node]
                if self.masters.get(group) == node:
                    self.masters[group] = None
        for group in GROUPS:
            if not any(of == group for of, _ in self.nodes):
                for part in (self.masters, self.epochs, self.topics):
                    part.pop(group, None)

    def groups_of(self, topic: str) -> list[Shown]:
        found = []
        for group in GROUPS:
            if topic in self.topics.get(group, ()):
                master = self.masters.get(group)
                roles: list[tuple[str, Role]] = [
                    (node, step.role)
                    for (of, node), (step, _) in sorted(self.nodes.items())
                    if of == group
                ]
                nodes: list[tuple[str, Role]] = [
                    (node, "unknown" if role == "master" and node != master else role)
                    for node, role in roles
                ]
                found.append((group, master, nodes))
        return found


def shown(found: Directory, topic: str) -> list[Shown]:
    try:
        route = found.answer(topic).route
    except UnknownTopic:
        return []
    return [
        (group.group, group.master, [(node.node, node.role) for node in group.nodes])
        for group in route.groups
    ]


def registration(step: Step) -> Registration:
    identity = f"{step.group} {step.node}"
    return said(
        *step.topics,
        epoch=step.epoch,
        counter=step.counter,
        role=step.role,
        identity=identity,
        api=f"http://{step.node}.{step.group}:80",
    )


@given(STEPS)
def test_the_answers_equal_a_model(steps: list[Step]) -> None:
    model, found, now_s = Model(), directory(), 0.0
    versions: dict[str, tuple[str, object]] = {}
    for step in steps:
        now_s += step.waits_s
        model.expire(now_s)
        found.expire(now_s)
        applied = False
        with contextlib.suppress(RegistrationRefused):
            found.register(step.group, step.node, registration(step), now_s)
            applied = True
        assert applied == model.register(step, now_s), step
        for topic in TOPICS:
            answer = shown(found, topic)
            assert answer == model.groups_of(topic), topic
            if answer:
                route = found.answer(topic).route
                content = msgspec.to_builtins(msgspec.structs.replace(route, version=""))
                version, before = versions.get(topic, ("", None))
                assert (route.version == version) == (content == before)
                versions[topic] = route.version, content


@given(STEPS, st.integers(0, 24))
def test_after_a_restart_and_a_renewal_of_all_nodes_the_answers_are_the_same(
    steps: list[Step], restart: int
) -> None:
    found, latest = directory(), dict[tuple[str, str], Step]()
    for step in steps[:restart]:
        with contextlib.suppress(RegistrationRefused):
            found.register(step.group, step.node, registration(step), 0.0)
            latest[step.group, step.node] = step
    again = directory()
    masters = {name: group.master for name, group in found.table.groups.items()}
    for (group, node), step in latest.items():
        if step.role == "master" and masters[group] != node:
            continue  # it would register as a slave by now, or be refused again
        again.register(group, node, registration(step), 0.0)
    for topic in TOPICS:
        with_master = [row for row in shown(found, topic) if row[1] is not None]
        assert [row[:2] for row in shown(again, topic)] == [row[:2] for row in with_master]


def test_an_instance_that_has_just_started_does_not_say_that_a_topic_does_not_exist() -> None:
    found = directory(expected=["g0", "g1"], asks=True)
    with pytest.raises(RouteIncomplete, match="g0, g1"):
        found.answer("orders")
    found.note_peers(["g2"])
    for group in ("g0", "g1"):
        found.register(group, "n0", said("orders", identity=group), 1.0)
    route = found.answer("orders").route
    assert (route.complete, route.missing) == (False, ["g2"])
    with pytest.raises(RouteIncomplete, match="g2"):
        found.answer("none")
    changes = found.register("g2", "n0", said(identity="g2"), 2.0)
    assert changes.everything, "every held poll sees that the instance is complete"
    assert found.answer("orders").route.complete
    with pytest.raises(UnknownTopic, match="3 are registered"):
        found.answer("none")


def test_without_configured_broker_groups_an_instance_waits_until_all_nodes_have_renewed() -> None:
    found = directory(asks=True)
    found.note_peers(())
    found.register("g0", "n0", said("orders"), 1.0)
    assert not found.expire(SETTLE_S).everything
    assert not found.answer("orders").route.complete
    with pytest.raises(RouteIncomplete, match="all that run"):
        found.answer("none")
    assert found.expire(SETTLE_S + 1).everything, "every held poll sees that it is complete"
    assert found.answer("orders").route.complete
    with pytest.raises(UnknownTopic):
        found.answer("none")


def test_a_slave_alone_does_not_complete_its_broker_group() -> None:
    # Topics come from the master: a slave that registers first says nothing of them.
    found = directory(expected=["g0"])
    found.register("g0", "n1", said(role="slave", identity="1"), 1.0)
    assert found.completeness.missing == ["g0"]


def test_only_what_the_peers_named_is_given_up_after_two_minutes() -> None:
    found = directory(expected=["g0"], asks=True)
    found.note_peers(["g1"])
    assert not found.expire(EXPIRE_S).everything
    assert found.expire(EXPIRE_S + 1).everything
    assert found.completeness.missing == ["g0"]


def test_a_configured_broker_group_that_expires_is_missing_until_it_registers_again() -> None:
    found = directory(expected=["g0"])
    for group in ("g0", "g1"):
        found.register(group, "n0", said("orders", identity=group), 0.0)
    found.register("g0", "n1", said(role="slave", identity="1"), 1.0)
    assert not found.expire(EXPIRE_S + 0.5).everything
    assert found.answer("orders").route.complete, "a node of g0 is left, and g1 is not configured"
    assert found.expire(EXPIRE_S + 2).everything
    assert found.answer(None).route.missing == ["g0"]
    with pytest.raises(RouteIncomplete, match="g0"):
        found.answer("orders")
    found.register("g0", "n0", said("orders", identity="g0"), EXPIRE_S + 3)
    assert found.answer("orders").route.complete


def test_an_unknown_topic_names_the_broker_groups_that_are_gone() -> None:
    found = directory()
    found.register("g0", "n0", said("orders"), 0.0)
    found.expire(EXPIRE_S + 1)
    with pytest.raises(UnknownTopic, match="no longer register: g0") as caught:
        found.answer("orders")
    assert caught.value.gone == ["g0"]


def test_the_list_of_all_broker_groups_counts_topics() -> None:
    found = directory()
    found.register("g1", "n0", said("a", "b", identity="1"), 0.0)
    found.register("g0", "n0", said("a"), 0.0)
    rows = [(group.group, group.topics) for group in found.answer(None).route.groups]
    assert rows == [("g0", 1), ("g1", 2)]


def test_both_encodings_have_the_same_answer() -> None:
    found = directory()
    found.register("g0", "n0", said("orders"), 0.0)
    answer = found.answer("orders")
    as_json = msgspec.json.decode(answer.body(Encoding.JSON), type=Route)
    as_msgpack = msgspec.msgpack.decode(answer.body(Encoding.MSGPACK), type=Route)
    assert as_json == as_msgpack == answer.route
    same = msgspec.json.decode(answer.body(Encoding.JSON, is_changed=False), type=Route)
    assert same == msgspec.structs.replace(answer.route, changed=False)


def test_kept_answers_are_bounded() -> None:
    found = directory()
    found.register("g0", "n0", said(*map(str, range(200))), 0.0)
    for number in range(200):
        found.answer(str(number))
    assert sum(found.kept(str(number)) is not None for number in range(200)) == 100


def test_a_changed_topic_is_answered_anew() -> None:
    found = directory()
    found.register("g0", "n0", said("orders", "paid"), 0.0)
    before, other = found.answer("orders"), found.answer("paid")
    found.register("g0", "n0", said(counter=2, base=1, changed={"orders": queues(9)}), 1.0)
    assert found.answer("orders").route.groups[0].queues == 9
    assert found.answer("orders").route.version != before.route.version
    assert found.answer("paid") is other
