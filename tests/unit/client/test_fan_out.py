"""Answers of several broker groups are joined, and failures are told apart by broker group."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidemark import errors
from tidemark.client.batching import Limits
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.connection import Connection, ConnectionSettings
from tidemark.client.fan_out import all_topics, at_all, one_lag, one_topic
from tidemark.client.messages import QueueRange, Topic
from tidemark.client.queue_names import QueueNames


def group(name: str | None) -> BrokerGroup:
    connection = Connection("http://127.0.0.1:1", ConnectionSettings())
    return BrokerGroup(connection, Limits(), QueueNames(name))


def topic(name: str, group: str, queues: int) -> Topic:
    ranges = tuple(QueueRange(f"{group}/{queue}", 0, 1) for queue in range(queues))
    return Topic(name, queues, ranges, {"topic": name, "write_queues": queues})


async def outcome(of: dict[str, Any], absent: type[errors.TidemarkError] | None = None) -> Any:
    async def call(at: BrokerGroup) -> object:
        result = of[str(at.names.broker_group)]
        if isinstance(result, BaseException):
            raise result
        return result

    return await at_all([group(name) for name in of], call, absent=absent)


async def test_results_are_by_broker_group_and_a_broker_alone_has_no_name() -> None:
    assert await outcome({"g0": 1, "g1": 2}) == {"g0": 1, "g1": 2}

    async def call(_at: BrokerGroup) -> int:
        return 3

    assert await at_all([group(None)], call) == {"": 3}


async def test_a_partial_failure_says_where_it_is_done_and_where_not() -> None:
    with pytest.raises(errors.PartialFailure) as raised:
        await outcome({"g0": 1, "g1": errors.DiskFull("full"), "g2": errors.NotServing("no")})
    assert raised.value.facts == {
        "failed": {"g1": "disk-full", "g2": "not-serving"},
        "done": ["g0"],
    }
    assert raised.value.retriable
    assert "g1: [disk-full] full" in str(raised.value)


async def test_the_same_error_everywhere_is_that_error() -> None:
    with pytest.raises(errors.UnknownGroup):
        await outcome({"g0": errors.UnknownGroup("a"), "g1": errors.UnknownGroup("b")})


async def test_a_broker_group_without_the_thing_is_ignored_if_another_has_it() -> None:
    unknown = errors.UnknownGroup("not here")
    assert await outcome({"g0": unknown, "g1": 2}, errors.UnknownGroup) == {"g1": 2}
    with pytest.raises(errors.UnknownGroup):
        await outcome({"g0": unknown, "g1": unknown}, errors.UnknownGroup)
    with pytest.raises(errors.PartialFailure) as raised:
        await outcome({"g0": unknown, "g1": errors.DiskFull("full")}, errors.UnknownGroup)
    assert raised.value.facts == {"failed": {"g1": "disk-full"}, "done": ["g0"]}


def test_a_topic_has_the_queues_of_all_its_broker_groups() -> None:
    joined = one_topic({"g0": topic("orders", "g0", 2), "g1": topic("orders", "g1", 1)})
    assert (joined.queues, joined.write_queues) == (3, 3)
    assert [each.queue for each in joined.ranges] == ["g0/0", "g0/1", "g1/0"]
    assert joined.settings["broker_groups"] == {"g0": 2, "g1": 1}
    alone = topic("orders", "g0", 2)
    assert one_topic({"": alone}) is alone


def test_topics_of_all_broker_groups_are_listed_once() -> None:
    listed = all_topics(
        {"g0": [topic("b", "g0", 1)], "g1": [topic("b", "g1", 2), topic("a", "g1", 4)]}
    )
    assert [(each.name, each.queues) for each in listed] == [("a", 4), ("b", 3)]


def test_lags_are_added_up_and_unknown_if_one_is() -> None:
    first = {"messages": 1, "bytes": 5, "seconds": 2.0, "reasons": {}}
    second = {"messages": 2, "bytes": None, "seconds": 9.5, "reasons": {"bytes": "why"}}
    assert one_lag([first, second]) == {
        "messages": 3,
        "bytes": None,
        "seconds": 9.5,
        "reasons": cast(object, {"bytes": "why"}),
    }
    partly = one_lag([first], ["g1", "g2"])
    assert {name: partly[name] for name in ("messages", "bytes", "seconds")} == {
        "messages": None, "bytes": None, "seconds": None,
    }  # fmt: skip
    assert partly["reasons"]["messages"] == "no answer from broker group g1, g2"
