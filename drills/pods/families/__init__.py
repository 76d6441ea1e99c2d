"""The list of drills on pods.

The pods must recover from each drill by themselves; ``drilling`` waits for that and judges. The
times are those of the manifest, the lease's default profile and a kubelet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from drills.pods.drilling import PodStage
from drills.pods.families import crashes, planned, probing, strangers
from drills.pods.group import ELECTED_S, LOST_SLAVE_S, PLANNED_S, PodGroup
from drills.stage import Drill


def _drill(
    number: int,
    run: Callable[[PodStage], Awaitable[None]],
    limit_s: float,
    title: str,
    *,
    short: bool = True,
) -> Drill[PodGroup]:
    name = run.__name__.replace("_", "-")
    return Drill(str(number), name, title, run, restored_within_s=limit_s, short=short)


DRILLS: Final = (
    _drill(1, planned.hand_over, PLANNED_S, "the master's pod is deleted; preStop hands over"),
    _drill(2, planned.rolling_update, PLANNED_S, "every pod is replaced under load"),
    _drill(3, crashes.pod_kill, ELECTED_S, "everything of the master's pod is killed at once"),
    _drill(
        4, strangers.wrong_secret, PLANNED_S, "a node with another secret stays out and says so"
    ),
    _drill(5, probing.hung, PLANNED_S, "a broker's loop stands still"),
    _drill(7, crashes.cut_off, ELECTED_S, "the master's node loses its network"),
    _drill(
        8,
        crashes.container_kill,
        ELECTED_S,
        "each container of a slave and of the master is killed alone",
        short=False,
    ),
    _drill(9, planned.upgrade_rollback, PLANNED_S, "another image, and back again", short=False),
    _drill(
        10,
        probing.slow_start,
        LOST_SLAVE_S,
        "a slave builds its queues on a sixtieth of a processor",
    ),
)
