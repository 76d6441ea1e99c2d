"""The next steps of a StatefulSet's controller. Pure: pod states in, steps out.

The order is that of Kubernetes: pods are created from ordinal 0 upwards, and replaced from the
highest downwards, each only when all above it are ready; ``OrderedReady`` also waits when creating.
A pod that never becomes ready, even one of the old revision, therefore stops an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Verb(StrEnum):
    CREATE = "create"
    DELETE = "delete"


class Step(NamedTuple):
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
        """Whether an update may continue with the next pod."""
        return self.ready and not self.terminating


@dataclass(frozen=True, slots=True)
class Wanted:
    """The desired state of a StatefulSet."""

    replicas: int
    parallel: bool
    current: str
    """Revision of the pods below the partition."""
    update: str
    partition: int = 0
    on_delete: bool = False

    def revision(self, ordinal: int) -> str:
        return self.current if ordinal < self.partition else self.update


def next_steps(wanted: Wanted, pods: Mapping[int, PodState]) -> list[Step]:
    """Return the actions to take now; empty if there are none or to wait."""
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
