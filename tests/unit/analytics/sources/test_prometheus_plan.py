"""Slices, shards and filters: disjoint, and nothing left out."""

from __future__ import annotations

import re
from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.kernel.shape import METRICS
from analytics.sources.option_values import BadOption
from analytics.sources.prometheus.options import CONTEXT, parse
from analytics.sources.prometheus.plan import plan
from analytics.sources.prometheus.selectors import (
    exactly,
    normal,
    quoted,
    shard_matcher,
)
from shared.metrics.catalogue import BY_NAME

S = 1_000_000


def options(**of: str) -> Any:
    return parse({"url": "http://127.0.0.1:9090/", "selectors": "up", **of})


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(1, 10**6))
def test_slices_touch_and_cover_all(start_ms: int, length_ms: int, slice_ms: int) -> None:
    slice_ms = max(slice_ms, length_ms // 1000)
    found = list(
        plan(options(slice=f"{slice_ms}ms"), start_ms * 1000, (start_ms + length_ms) * 1000)
    )  # fmt: skip
    if not length_ms:
        assert found == []
        return
    assert found[0].start_us == start_ms * 1000
    assert found[-1].end_us == (start_ms + length_ms) * 1000
    assert all(one.end_us == other.start_us for one, other in pairwise(found))
    assert all(one.start_us < one.end_us for one in found)


def test_there_is_a_part_for_each_slice_selector_and_shard() -> None:
    found = list(plan(options(selectors='up\na{b="c"}', shards="3", slice="10s"), 0, 30 * S))
    assert len(found) == 3 * 2 * 3
    assert len({part.matchers for part in found}) == 6
    assert all(part.context is None for part in found)


def test_context_stands_in_every_shard_but_the_first() -> None:
    found = list(plan(options(shards="3", context="true"), 0, S))
    assert [part.context is None for part in found] == [True, False, False]
    assert found[1].context == f'__name__="up",{CONTEXT},queue=""'


def test_too_many_parts_are_a_mistake() -> None:
    with pytest.raises(BadOption, match="no more than 100000 parts"):
        list(plan(options(slice="1ms"), 0, 200 * S))


@pytest.mark.parametrize("shards", range(1, 11))
def test_every_queue_is_in_exactly_one_shard(shards: int) -> None:
    queues = ["", "x", "-1", *(str(number) for number in range(500))]
    owners = {queue: [] for queue in queues}  # type: dict[str, list[int]]
    for shard in range(shards):
        matcher = shard_matcher(shard, shards)
        for queue in queues:
            if matcher is None or _matches(matcher, queue):
                owners[queue].append(shard)
    assert {len(found) for found in owners.values()} == {1}
    assert owners[""] == [0]
    if shards <= 5:
        sizes = [sum(found == [shard] for found in owners.values()) for shard in range(shards)]
        assert max(sizes) <= 2 * min(sizes)


def _matches(matcher: str, queue: str) -> bool:
    found = re.fullmatch(r'queue(=~|!~)"(.*)"', matcher)
    assert found is not None
    return bool(re.fullmatch(found[2], queue)) == (found[1] == "=~")


def test_selectors_are_taken_apart() -> None:
    assert normal("up") == '__name__="up"'
    assert normal(' up { job = "a" , } ') == '__name__="up",job = "a" '
    assert normal('{__name__=~"a.*"}') == '__name__=~"a.*"'
    for wrong in ("", "{}", "rate(up[5m])", "up[5m]", "1+1"):
        with pytest.raises(BadOption):
            normal(wrong)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_text_is_matched_by_itself_and_by_nothing_else(text: str) -> None:
    # Go's and Python's expressions agree on what is escaped here.
    assert re.fullmatch(exactly(text), text, re.DOTALL)
    assert not re.fullmatch(exactly(text), text + "x", re.DOTALL)
    inner = quoted(text)[1:-1]
    assert "\n" not in inner
    assert re.fullmatch(r'(?:[^"\\]|\\.)*', inner, re.DOTALL)


def test_all_that_shaping_reads_is_in_the_catalogue() -> None:
    assert set(BY_NAME) >= METRICS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", ""), ("url", "ftp://h"), ("slice", "0"), ("slice", "x"), ("slice", "-5m"),
        ("shards", "0"), ("shards", "11"), ("shards", "two"), ("start", "yesterday"),
        ("context", "yes"), ("max_samples", "0"), ("selectors", "rate(up[5m])"),
    ],
)  # fmt: skip
def test_a_bad_option_is_named_with_what_would_do(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=f"^.*Option {name} is .*wanted: "):
        options(**{name: value})


def test_options_are_read() -> None:
    found = options(**{
        "start": "2026-03-01T12:00:00.5Z", "end": "1772366407.25", "slice": "30m",
        "timeout": "500ms", "header.X-Scope-OrgID": "me",
    })  # fmt: skip
    assert found.url == "http://127.0.0.1:9090"
    assert (found.start_us, found.end_us) == (1772366400500000, 1772366407250000)
    assert (found.slice_s, found.timeout_s) == (1800.0, 0.5)
    assert found.headers == (("X-Scope-OrgID", "me"),)


def test_an_end_before_the_start_is_a_mistake() -> None:
    with pytest.raises(BadOption, match="Option start"):
        options(start="20", end="10")


@pytest.mark.parametrize(
    "url", ["localhost:9090", "http://", "http://h:port", "http://h:0", "http://h/?a=b", "ftp://h"]
)
def test_an_address_that_cannot_be_asked_is_a_mistake(url: str) -> None:
    with pytest.raises(BadOption, match="Option url is"):
        parse({"url": url})


def test_a_prefix_stays_in_the_address_and_a_login_becomes_a_header() -> None:
    found = parse({"url": "https://me:s%40crt@h:9090/prometheus/", "header.X-Scope-OrgID": "a"})
    assert found.url == "https://h:9090/prometheus"
    assert dict(found.headers) == {
        "Authorization": f"Basic {b64encode(b'me:s@crt').decode()}", "X-Scope-OrgID": "a",
    }  # fmt: skip
    assert parse({"url": "http://[::1]:9090"}).url == "http://[::1]:9090"
