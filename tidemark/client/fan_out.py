"""Makes a call at several broker groups at once, and joins their answers.

A call that fails at some of them raises ``PartialFailure``, which says at which it is done, and for
a call that reads has the answer of the others. A call that fails everywhere with the same code
raises that error, as with a single broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from tidemark import errors
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.groups import Group, GroupDetail, GroupMember, lag_of
from tidemark.client.messages import Topic

T = TypeVar("T")


async def at_all(
    groups: Sequence[BrokerGroup],
    call: Callable[[BrokerGroup], Awaitable[T]],
    *,
    absent: type[errors.TidemarkError] | None = None,
) -> dict[str, T]:
    """Make a call at each broker group; return the results by name, sorted.

    The name of one that is alone is empty. absent: the error of a broker group that does not have
    what the call is about; it is ignored if another one has it. Raises PartialFailure.
    """
    found, failure = await asked_all(groups, call, absent=absent)
    if failure is not None:
        raise failure
    return found


async def asked_all(
    groups: Sequence[BrokerGroup],
    call: Callable[[BrokerGroup], Awaitable[T]],
    *,
    absent: type[errors.TidemarkError] | None = None,
) -> tuple[dict[str, T], errors.PartialFailure | None]:
    """Like ``at_all``, but returns the failure of some broker groups with the others' results.

    There is at least one result.
    """
    if len(groups) == 1:
        return {groups[0].name: await call(groups[0])}, None
    outcomes = await asyncio.gather(*(call(each) for each in groups), return_exceptions=True)
    done: dict[str, T] = {}
    lacking: dict[str, errors.TidemarkError] = {}
    failed: dict[str, errors.TidemarkError] = {}
    for group, outcome in zip(groups, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            done[group.name] = outcome
        elif not isinstance(outcome, errors.TidemarkError):
            raise outcome
        elif absent is not None and isinstance(outcome, absent):
            lacking[group.name] = outcome
        else:
            failed[group.name] = outcome
    if not failed and not done:
        raise next(iter(lacking.values()))
    if not failed:
        return done, None
    if not done and not lacking and len({error.code for error in failed.values()}) == 1:
        raise next(iter(failed.values()))
    failure = errors.PartialFailure(failed, sorted({*done, *lacking}))
    if not done:
        raise failure
    return done, failure


def answered(answer: T, failure: errors.PartialFailure | None) -> T:
    """Return the joined answer to a call that reads.

    Raises the failure of some broker groups, with the answer of the others.
    """
    if failure is None:
        return answer
    failure.answer = answer
    raise failure


def one_topic(found: Mapping[str, Topic]) -> Topic:
    """Join what broker groups answer about one topic. Its setting ``broker_groups`` has the number
    of queues of each."""
    first = next(iter(found.values()))
    if "" in found:
        return first
    settings = {
        **first.settings,
        "write_queues": sum(each.write_queues for each in found.values()),
        "broker_groups": {name: each.queues for name, each in found.items()},
    }
    return Topic(
        first.name,
        sum(each.queues for each in found.values()),
        tuple(queue for each in found.values() for queue in each.ranges),
        settings,
    )


def all_topics(found: Mapping[str, Sequence[Topic]]) -> list[Topic]:
    """Join the topics of all broker groups, sorted by name."""
    if "" in found:
        return list(found[""])
    by_name: dict[str, dict[str, Topic]] = {}
    for name, topics in found.items():
        for topic in topics:
            by_name.setdefault(topic.name, {})[name] = topic
    return [one_topic(by_name[name]) for name in sorted(by_name)]


def one_group(found: Mapping[str, Group]) -> Group:
    """Join what broker groups answer about one consumer group."""
    first = next(iter(found.values()))
    if "" in found:
        return first
    members = [each.members for each in found.values() if each.members is not None]
    states = {each.state for each in found.values()}
    state = next((each for each in ("rebalancing", "stable") if each in states), first.state)
    most = max(members, default=None)
    settings = {**first.settings, "broker_groups": list(found), "state": state, "members": most}
    return first._replace(state=state, members=most, settings=settings)


def all_groups(found: Mapping[str, Sequence[Group]]) -> list[Group]:
    """Join the consumer groups of all broker groups, sorted by name."""
    if "" in found:
        return list(found[""])
    by_name: dict[str, dict[str, Group]] = {}
    for name, groups in found.items():
        for group in groups:
            by_name.setdefault(group.name, {})[name] = group
    return [one_group(by_name[name]) for name in sorted(by_name)]


def one_detail(found: Mapping[str, GroupDetail], failed: Collection[str] = ()) -> GroupDetail:
    """Join what broker groups answer about one consumer group, its members and its lag.

    Every broker group counts generations of its own, so there is none of all together. failed:
    broker groups without an answer; with one, no total of the lag is known.
    """
    first = next(iter(found.values()))
    if "" in found:
        return first
    members: dict[str, GroupMember] = {}
    for detail in found.values():
        for member in detail.members:
            before = members.get(member.name)
            members[member.name] = member if before is None else _one_member(before, member)
    topics: dict[str, list[object]] = {}
    for detail in found.values():
        for topic in detail.facts["topics"]:
            topics.setdefault(topic["topic"], []).extend(topic["queues"])
    lag = one_lag([detail.facts["lag"] for detail in found.values()], failed)
    group = one_group({name: detail.group for name, detail in found.items()})
    group = group._replace(members=len(members))
    facts = {
        **first.facts,
        "state": group.state,
        "generation": None,
        "broker_groups": list(found),
        "members": [_facts_of(member) for member in members.values()],
        "lag": lag,
        "topics": [{"topic": topic, "queues": queues} for topic, queues in topics.items()],
    }
    queues = [queue for detail in found.values() for queue in detail.queues]
    return GroupDetail(group, None, list(members.values()), lag_of(lag), queues, facts)


def _one_member(first: GroupMember, second: GroupMember) -> GroupMember:
    """Join what two broker groups know of one member."""
    return GroupMember(
        first.name,
        [*first.assignment, *second.assignment],
        {**first.subscriptions, **second.subscriptions},
        first.session_ms,
        max(first.last_seen_ms, second.last_seen_ms),
    )


def _facts_of(member: GroupMember) -> dict[str, object]:
    return {
        "member": member.name,
        "assignment": member.assignment,
        "subscriptions": [
            {"topic": topic, "tags": tags} for topic, tags in member.subscriptions.items()
        ],
        "session_ms": member.session_ms,
        "last_seen_ms": member.last_seen_ms,
    }


def one_lag(lags: Sequence[Mapping[str, Any]], failed: Collection[str] = ()) -> dict[str, Any]:
    """Add up lags in the form of the API; a number is unknown if one of them is.

    The age is that of the oldest unread message. failed: broker groups whose lag is not known.
    """
    if failed:
        numbers = [name for name in lags[0] if name != "reasons"]
        reason = f"no answer from broker group {', '.join(failed)}"
        return {**dict.fromkeys(numbers), "reasons": dict.fromkeys(numbers, reason)}
    joined: dict[str, Any] = {}
    for name in lags[0]:
        values = [lag[name] for lag in lags]
        if name == "reasons":
            joined[name] = {key: reason for each in values for key, reason in each.items()}
        elif any(value is None for value in values):
            joined[name] = None
        else:
            joined[name] = max(values) if name == "seconds" else sum(values)
    return joined
