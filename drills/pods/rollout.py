"""What the controller of a StatefulSet does next. Pure: pods as they are in, steps out.

The order is Kubernetes': pods are made from ordinal 0 upwards, and replaced from the highest
downwards, each only when all above it are ready; ``OrderedReady`` also waits at making them. A pod
that never becomes ready therefore stops an update, and so does one of the old revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Verb(StrEnum):
    """What is done to a pod."""

    CREATE = "create"
    DELETE = "delete"


class Step(NamedTuple):
    """One thing to do."""

    verb: Verb
    ordinal: int
    revision: str


class PodState(NamedTuple):
    """A pod as the controller sees it."""

    revision: str
    ready: bool
    terminating: bool = False

    @property
    def healthy(self) -> bool:
        """Whether an update may go on to the next pod."""
        return self.ready and not self.terminating


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the StatefulSet says."""

    replicas: int
    parallel: bool
    current: str
    """The revision that pods below the partition keep."""
    update: str
    partition: int = 0
    on_delete: bool = False

    def revision(self, ordinal: int) -> str:
        """Which revision a new pod has."""
        return self.current if ordinal < self.partition else self.update


def next_steps(wanted: Wanted, pods: Mapping[int, PodState]) -> list[Step]:
    """What to do now; empty: nothing, or wait."""
    steps: list[Step] = []
    for ordinal in range(wanted.replicas):
        pod = pods.get(ordinal)
        if pod is None:
            steps.append(Step(Verb.CREATE, ordinal, wanted.revision(ordinal)))
        elif pod.healthy:
            continue
        if not wanted.parallel:
            return steps
    surplus = sorted((ordinal for ordinal in pods if ordinal >= wanted.replicas), reverse=True)
    for ordinal in surplus:
        if not pods[ordinal].terminating:
            steps.append(Step(Verb.DELETE, ordinal, pods[ordinal].revision))
        if not wanted.parallel:
            return steps
    if steps or wanted.on_delete:
        return steps
    for ordinal in range(wanted.replicas - 1, wanted.partition - 1, -1):
        pod = pods[ordinal]
        if pod.revision != wanted.update and not pod.terminating:
            return [Step(Verb.DELETE, ordinal, pod.revision)]
        if not pod.healthy:
            return []
    return []
