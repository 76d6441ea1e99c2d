"""Routes are parsed, and an incomplete answer does not take broker groups away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark import errors
from tidemark.client.routes import Routes, merged, next_sources, read_routes

NODE = {"node": "n0", "role": "master", "api": "http://h0:8080/", "admin": None}


def wire(*names: str, **changes: Any) -> dict[str, Any]:
    groups = [
        {
            "group": name,
            "epoch": 3,
            "master": "n0",
            "nodes": [{**NODE, "node": "n1", "role": "slave", "api": "http://h1:8080"}, NODE],
            "queues": 8,
            "readable": True,
            "writable": True,
        }
        for name in names
    ]
    return {
        "cluster": "tidemark",
        "version": "v1",
        "changed": True,
        "complete": True,
        "missing": [],
        "names": [],
        "groups": groups,
        **changes,
    }


def routes(*names: str, **changes: Any) -> Routes:
    return read_routes(wire(*names, **changes))


def test_a_route_is_parsed_and_the_masters_address_comes_first() -> None:
    found = routes("g1", "g0", names=["http://names:9870"])
    assert [each.broker_group for each in found.groups] == ["g0", "g1"]
    assert found.groups[0].urls == ("http://h0:8080", "http://h1:8080")
    assert (found.groups[0].queues, found.groups[0].writable, found.groups[0].epoch) == (8, True, 3)
    assert found.names == ("http://names:9870",)
    assert found.group("g1") == found.groups[1]
    assert found.group("g2") is None


def test_the_route_of_a_cluster_has_no_queues() -> None:
    answer = wire("g0")
    for name in ("queues", "readable", "writable"):
        del answer["groups"][0][name]
    answer["groups"][0]["topics"] = 7
    (group,) = read_routes(answer).groups
    assert (group.queues, group.topics) == (0, 7)


@pytest.mark.parametrize("lacking", ["cluster", "version", "complete", "missing", "groups"])
def test_an_answer_that_lacks_a_field_is_not_understood(lacking: str) -> None:
    answer = wire("g0")
    del answer[lacking]
    with pytest.raises(errors.BrokenAnswer, match=lacking):
        read_routes(answer)


@pytest.mark.parametrize(
    ("names", "groups", "is_alone"),
    [([], ["g0"], True), (["http://n:1"], ["g0"], False), ([], ["g0", "g1"], False)],
)
def test_a_broker_is_alone_without_others_and_without_names(
    names: list[str], groups: list[str], is_alone: bool
) -> None:
    assert routes(*groups, names=names).is_alone is is_alone


def test_a_broker_group_that_is_missing_after_a_restart_stays() -> None:
    before = routes("g0", "g1", "g2")
    after = routes("g1", complete=False, missing=["g0"], version="v2")
    assert [each.broker_group for each in merged(before, after).groups] == ["g0", "g1"]
    assert merged(before, after).version == "v2"
    assert merged(before, routes("g1")).groups == routes("g1").groups
    assert merged(None, after) == after


def test_all_broker_groups_stay_while_a_name_service_still_asks_others() -> None:
    after = routes("g1", complete=False, version="v2")
    assert [each.broker_group for each in merged(routes("g0", "g1"), after).groups] == ["g0", "g1"]


def test_routes_stay_complete_while_a_restarted_name_service_learns_them_again() -> None:
    after = routes("g1", complete=False, missing=["g0"])
    assert merged(routes("g0", "g1"), after).complete
    assert not merged(routes("g1", complete=False, missing=["g0"]), after).complete
    assert merged(after, routes("g0", "g1")).complete


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd")), st.data())
def test_an_incomplete_answer_takes_away_only_what_it_knows_to_be_gone(
    had: set[str], has: set[str], data: st.DataObject
) -> None:
    missing = data.draw(st.sets(st.sampled_from("abcd")))
    after = routes(*sorted(has), complete=False, missing=sorted(missing))
    kept = {each.broker_group for each in merged(routes(*sorted(had)), after).groups}
    assert kept == has | (had & missing if missing else had)


def test_the_names_that_a_broker_names_replace_the_given_addresses() -> None:
    named = ("http://a:1", "http://b:1")
    assert next_sources(["http://broker"], "http://broker", named, is_first=True) == named


def test_a_name_service_is_asked_again_with_those_that_it_knows() -> None:
    given_ones = ("http://a:1", "http://b:1")
    asked = next_sources(given_ones, "http://b:1", ["http://b:1", "http://c:1"], is_first=True)
    assert asked == ("http://b:1", "http://a:1", "http://c:1")
    later = next_sources(["http://b:1"], "http://b:1", ["http://c:1"], is_first=False)
    assert later == ("http://b:1", "http://c:1")
    assert next_sources(given_ones, "http://a:1", (), is_first=True) == given_ones
