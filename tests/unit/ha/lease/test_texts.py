"""A lease as texts: decoded as it was, and invalid texts of people are refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ha.lease.texts import (
    UnreadableLease,
    holder_of,
    holder_text,
    is_readable,
    lease_of,
    texts_of,
)
from services.ha.lease.value import Holder, Lease, Member, Membership
from shared.cluster.nodes import Node
from tests.support.for_each import for_each
from tidemark.offsets import Epoch

HELD = Lease(
    holder=Holder("a", "1f" * 16, "0123456789abcdef"),
    epoch=Epoch(4),
    in_sync=(Member("a", "1f" * 16), Member("b", "2f" * 16)),
    in_sync_version=7,
    min_in_sync=1,
    replicas=("a", "b"),
    renewed=99,
)
NODE = '{"name":"a","host":"h","port":1,"api":"x","admin":"y"}'
NAMES = st.text("abcdefgh-0", min_size=1, max_size=8)
NUMBERS = st.integers(0, (1 << 63) - 1)


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    nodes = draw(st.lists(NAMES, unique=True, max_size=5))
    return Lease(
        holder=draw(st.none() | st.builds(Holder, NAMES, NAMES, NAMES)),
        epoch=Epoch(draw(NUMBERS)),
        in_sync=tuple(sorted(Member(node, draw(NAMES)) for node in nodes)),
        in_sync_version=draw(NUMBERS),
        min_in_sync=draw(st.integers(1, 9)),
        replicas=tuple(nodes),
        renewed=draw(NUMBERS),
        handover_to=draw(st.none() | NAMES),
        master_address=draw(st.just("") | NAMES),
        paused=draw(st.booleans()),
        members=draw(st.none() | memberships()),
    )


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=9))
    ports = st.integers(1, 65_535)
    nodes = tuple(Node(name, draw(NAMES), draw(ports), draw(NAMES), draw(NAMES)) for name in names)
    return Membership(draw(st.integers(1, (1 << 63) - 1)), nodes)


@given(leases())
def test_a_lease_comes_back_as_it_was(lease: Lease) -> None:
    assert lease_of(holder_text(lease.holder), texts_of(lease)) == lease


def test_the_texts_are_those_that_people_read() -> None:
    nodes = (Node("a", "h", 1, "http://a:1", "http://a:2"),)
    shown = HELD._replace(paused=True, handover_to="b", master_address="http://a:1")
    assert texts_of(shown._replace(members=Membership(2, nodes))) == {
        "epoch": "4",
        "isr": f'[["a","{"1f" * 16}"],["b","{"2f" * 16}"]]',
        "isrVersion": "7",
        "minISR": "1",
        "replicas": '["a","b"]',
        "renewed": "99",
        "handoverTo": "b",
        "masterAddr": "http://a:1",
        "paused": "true",
        "members": '{"version":2,"nodes":[{"name":"a","host":"h","port":1,"api":"http://a:1",'
        '"admin":"http://a:2"}]}',
    }
    assert holder_text(HELD.holder) == f"a/{'1f' * 16}/0123456789abcdef"


@for_each(
    ("name", "text"),
    [
        ("epoch", ""),
        ("epoch", "-1"),
        ("epoch", "four"),
        ("epoch", "٤"),
        ("epoch", "9223372036854775808"),
        ("epoch", "1" * 5000),
        ("isrVersion", "1.0"),
        ("minISR", "0x1"),
        ("renewed", " 1"),
        ("isr", "a,b"),
        ("isr", "7"),
        ("isr", '["ab"]'),
        ("isr", '[{"a":1,"b":2}]'),
        ("isr", "[" * 100_000),
        ("isr", '[["a"]]'),
        ("isr", '[["a","x","y"]]'),
        ("isr", '[["a",""]]'),
        ("isr", '[["a",1]]'),
        ("isr", '[["a","x"],["a","y"]]'),
        ("replicas", "a"),
        ("replicas", "{}"),
        ("replicas", "[1]"),
        ("paused", "yes"),
        ("members", ""),
        ("members", "[]"),
        ("members", '{"version":1,"nodes":[]}'),
        ("members", f'{{"version":0,"nodes":[{NODE}]}}'),
        ("members", f'{{"version":1,"nodes":[{NODE},{NODE}]}}'),
        ("members", '{"version":1,"nodes":[{"name":"a","host":"h","port":0}]}'),
    ],
)
def test_what_is_not_a_lease_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(UnreadableLease, match=name):
        lease_of("", texts_of(HELD) | {name: text})


def test_unknown_fields_of_a_node_are_ignored() -> None:
    node = NODE.replace("}", ',"zone":"z1"}')
    texts = texts_of(HELD) | {"members": f'{{"version":1,"nodes":[{node}],"more":1}}', "more": "x"}
    assert lease_of("", texts).members == Membership(1, (Node("a", "h", 1, "x", "y"),))


@pytest.mark.parametrize("name", sorted(texts_of(HELD)))
def test_a_missing_text_is_named(name: str) -> None:
    texts = texts_of(HELD)
    del texts[name]
    with pytest.raises(UnreadableLease, match=f"{name} is missing"):
        lease_of("", texts)


@pytest.mark.parametrize("text", ["a", "a/b", "a/b/c/d", "//", "a//c"])
def test_a_holder_is_three_names_or_none(text: str) -> None:
    assert holder_of("") is None
    with pytest.raises(UnreadableLease, match="holder"):
        holder_of(text)


def test_a_lease_with_a_text_that_no_node_takes_is_not_readable() -> None:
    long = Node("n1", "h", 1, "http://" + "x" * 1100, "http://admin")
    lease = Lease(None, Epoch(1), (), 1, 1, ("n1",))
    assert is_readable(lease)
    assert not is_readable(lease._replace(members=Membership(1, (long,))))
    twice = (Member("n1", "0" * 32), Member("n1", "1" * 32))
    assert not is_readable(lease._replace(in_sync=twice))
