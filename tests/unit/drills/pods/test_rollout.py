"""The order in which pods are created and replaced."""

from __future__ import annotations

import itertools

import pytest

from drills.pods.rollout import PodState, Step, Verb, Wanted, next_steps

NEW, OLD = "new", "old"
READY = PodState(NEW, ready=True)
AGED = PodState(OLD, ready=True)


def wanted(*, replicas: int = 3, parallel: bool = True, partition: int = 0) -> Wanted:
    return Wanted(replicas, parallel, OLD, NEW, partition)


def test_in_parallel_all_that_is_missing_is_made_at_once() -> None:
    assert next_steps(wanted(), {1: READY}) == [
        Step(Verb.CREATE, 0, NEW),
        Step(Verb.CREATE, 2, NEW),
    ]


def test_in_order_each_waits_for_the_one_before() -> None:
    one = wanted(parallel=False)
    assert next_steps(one, {}) == [Step(Verb.CREATE, 0, NEW)]
    assert next_steps(one, {0: PodState(NEW, ready=False)}) == []
    assert next_steps(one, {0: READY}) == [Step(Verb.CREATE, 1, NEW)]


@pytest.mark.parametrize("parallel", [True, False])
def test_an_update_goes_from_the_highest_ordinal_down_one_at_a_time(parallel: bool) -> None:
    pods = dict.fromkeys(range(3), AGED)
    order = []
    for _ in range(3):
        (step,) = next_steps(wanted(parallel=parallel), pods)
        assert step.verb is Verb.DELETE
        order.append(step.ordinal)
        pods[step.ordinal] = AGED._replace(terminating=True)
        assert next_steps(wanted(parallel=parallel), pods) == []
        del pods[step.ordinal]
        (made,) = next_steps(wanted(parallel=parallel), pods)
        assert made == Step(Verb.CREATE, step.ordinal, NEW)
        pods[step.ordinal] = READY._replace(ready=False)
        assert next_steps(wanted(parallel=parallel), pods) == []
        pods[step.ordinal] = READY
    assert order == [2, 1, 0]
    assert next_steps(wanted(parallel=parallel), pods) == []


def test_below_the_partition_pods_keep_their_revision_and_come_back_with_it() -> None:
    one = wanted(partition=2)
    assert next_steps(one, {0: AGED, 1: AGED, 2: READY}) == []
    assert next_steps(one, {1: AGED, 2: READY}) == [Step(Verb.CREATE, 0, OLD)]


def test_surplus_pods_go() -> None:
    pods = dict.fromkeys(range(4), READY)
    assert next_steps(wanted(replicas=2), pods) == [
        Step(Verb.DELETE, 3, NEW),
        Step(Verb.DELETE, 2, NEW),
    ]
    assert next_steps(wanted(replicas=2, parallel=False), pods) == [Step(Verb.DELETE, 3, NEW)]


def test_at_most_one_pod_is_taken_away_and_only_while_those_above_are_healthy() -> None:
    states = [
        PodState(revision, ready, terminating)
        for revision, ready, terminating in itertools.product(
            (NEW, OLD), (True, False), (True, False)
        )
    ]
    for chosen in itertools.product(states, repeat=3):
        steps = next_steps(wanted(), dict(enumerate(chosen)))
        assert len(steps) <= 1
        for step in steps:
            assert step.verb is Verb.DELETE
            assert chosen[step.ordinal].revision == OLD
            above = chosen[step.ordinal + 1 :]
            assert all(pod.healthy and pod.revision == NEW for pod in above)
