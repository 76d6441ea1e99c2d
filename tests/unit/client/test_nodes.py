from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.nodes import NODES_MAX, Nodes

A, B, C = "http://a:1", "http://b:1", "http://c:1"
URLS = st.sampled_from([A, B, C])


def test_the_first_address_is_asked_until_it_fails() -> None:
    nodes = Nodes([A, B])
    nodes.failed(B)
    assert nodes.current == A
    nodes.failed(A)
    assert nodes.current == B
    nodes.failed(B)
    assert nodes.current == A


def test_a_node_that_names_the_master_is_followed_at_once() -> None:
    nodes = Nodes([A])
    assert nodes.sent_on(A, B)
    assert nodes.current == B
    assert nodes.urls == (A, B)


def test_calls_that_come_back_late_do_not_undo_what_others_found() -> None:
    nodes = Nodes([A, B, C])
    assert nodes.sent_on(A, C)
    nodes.failed(A)
    assert nodes.current == C
    assert nodes.sent_on(B, A)
    assert nodes.current == C


def test_nobody_is_asked_at_once_where_no_master_is_known() -> None:
    nodes = Nodes([A, B])
    assert not nodes.sent_on(A, None)
    assert nodes.current == B
    assert not nodes.sent_on(B, B)
    assert nodes.current == A


def test_what_was_given_stays_known() -> None:
    nodes = Nodes([A])
    nodes.learned([B, C])
    assert nodes.urls == (B, C, A)
    nodes.failed(A)
    assert nodes.current == B


STEPS = st.one_of(
    st.builds(lambda url: lambda nodes: nodes.failed(url), URLS),
    st.builds(
        lambda url, master: lambda nodes: nodes.sent_on(url, master),
        URLS,
        st.one_of(st.none(), URLS),
    ),
    st.builds(lambda urls: lambda nodes: nodes.learned(urls), st.lists(URLS, max_size=3)),
)


@given(st.lists(URLS, min_size=1, max_size=3), st.lists(STEPS, max_size=30))
def test_there_is_always_a_known_node_to_ask(
    given_urls: list[str], steps: list[Callable[[Nodes], object]]
) -> None:
    nodes = Nodes(given_urls)
    for step in steps:
        step(nodes)
        assert nodes.current in {A, B, C}
        assert len(nodes.urls) <= NODES_MAX
        assert set(given_urls) <= set(nodes.urls)
