from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.nodes import NODES_MAX, Nodes, View, read_view

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
    assert nodes.redirected(A, B)
    assert nodes.current == B
    assert nodes.urls == (A, B)


def test_calls_that_come_back_late_do_not_undo_what_others_found() -> None:
    nodes = Nodes([A, B, C])
    assert nodes.redirected(A, C)
    nodes.failed(A)
    assert nodes.current == C
    assert nodes.redirected(B, A)
    assert nodes.current == C


def test_no_node_is_asked_at_once_where_no_master_is_known() -> None:
    nodes = Nodes([A, B])
    assert not nodes.redirected(A, None)
    assert nodes.current == B
    assert not nodes.redirected(B, B)
    assert nodes.current == A


def test_given_addresses_stay_known() -> None:
    nodes = Nodes([A])
    nodes.learned([B, C])
    assert nodes.urls == (B, C, A)
    nodes.failed(A)
    assert nodes.current == B


def test_a_reported_master_is_tried_and_becomes_the_master_by_its_own_answer() -> None:
    nodes = Nodes([A, B])
    assert nodes.record_view(A, View([A, B], epoch=1, master=A, is_alone=False))
    assert nodes.reported(B, 2)
    assert (nodes.current, nodes.master) == (B, None)
    assert nodes.record_view(B, View([A, B], epoch=2, master=B, is_alone=False))
    assert nodes.master == B


def test_a_reported_master_is_not_tried_again_or_in_an_epoch_that_is_over() -> None:
    nodes = Nodes([A, B])
    assert nodes.reported(B, 2)
    nodes.failed(B)
    assert not nodes.reported(B, 2)
    assert not nodes.reported(B, 1)
    assert not nodes.reported(C, 3)  # a node that is not known
    assert nodes.current == A
    assert nodes.record_view(A, View([A, B], epoch=4, master=A, is_alone=False))
    assert not nodes.reported(B, 3)
    assert nodes.current == A


STEPS = st.one_of(
    st.builds(lambda url: lambda nodes: nodes.failed(url), URLS),
    st.builds(
        lambda url, master: lambda nodes: nodes.redirected(url, master),
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


def view(master: str | None, epoch: int, *urls: str) -> View:
    return View(urls, epoch, master, is_alone=False)


def test_a_node_that_claims_to_be_the_master_is_used() -> None:
    nodes = Nodes([A])
    assert not nodes.record_view(A, view(B, 1, A, B))
    assert nodes.current == A
    assert nodes.record_view(B, view(B, 1, A, B))
    assert (nodes.current, nodes.master) == (B, B)


def test_a_stopped_master_of_an_earlier_epoch_is_not_used_again() -> None:
    nodes = Nodes([A, B])
    assert nodes.record_view(A, view(A, 4, A, B))
    assert nodes.record_view(B, view(B, 5, A, B))
    assert not nodes.record_view(A, view(A, 4, A, B))
    assert nodes.current == B


def test_a_master_that_fails_is_not_known_any_more() -> None:
    nodes = Nodes([A, B])
    nodes.record_view(A, view(A, 1, A, B))
    nodes.failed(A)
    assert (nodes.master, nodes.current) == (None, B)
    nodes.record_view(A, view(A, 1, A, B))
    nodes.redirected(A, B)
    assert (nodes.master, nodes.current) == (None, B)


def test_plain_reads_go_to_a_given_node_that_is_not_the_master() -> None:
    nodes = Nodes([A, B])
    assert nodes.reader == A  # the master is not known yet
    nodes.record_view(A, view(A, 1, A, B, C))
    assert nodes.reader == B
    nodes.reader_failed(A)
    assert nodes.reader == B
    nodes.reader_failed(B)
    assert nodes.reader == C
    nodes.reader_failed(C)
    assert nodes.reader == A  # the master at last
    assert nodes.current == A


def test_one_given_node_is_read_from_whatever_it_is() -> None:
    nodes = Nodes([A])
    nodes.record_view(A, view(A, 1, A, B))
    assert nodes.reader == A
    nodes.reader_failed(A)
    assert nodes.reader == B


def test_an_answer_about_a_group_is_read() -> None:
    nodes_of_group = [
        {"node": "n0", "api": A + "/"},
        {"node": "n1", "api": B},
        {"node": "n2", "api": None},
    ]
    read = read_view({"epoch": 3, "master": "n1", "nodes": nodes_of_group})
    assert read == View([A, B], 3, B, is_alone=False)
    assert read_view({"epoch": None, "master": None, "nodes": []}).is_alone
    unsure = read_view({"epoch": None, "master": None, "nodes": nodes_of_group[2:]})
    assert (list(unsure.urls), unsure.is_alone) == ([], False)
