"""The list of drills on pods.

The pods must recover from each drill by themselves; ``drilling`` waits for that and judges. The
times are those of the manifest, the lease's default profile and a kubelet.
"""

from __future__ import annotations

from typing import Final

from drills.pods.drilling import PodDrill
from drills.pods.families import crashes, planned, probing, strangers
from drills.pods.families.limits import ELECTED_S, LOST_SLAVE_S, PLANNED_S

DRILLS: Final = (
    PodDrill(
        number="1",
        name="hand-over",
        title="the master's pod is deleted; preStop hands over",
        run=planned.hand_over,
        restored_within_s=PLANNED_S,
        short=True,
    ),
    PodDrill(
        number="2",
        name="rolling-update",
        title="every pod is replaced under load",
        run=planned.rolling_update,
        restored_within_s=PLANNED_S,
        short=True,
    ),
    PodDrill(
        number="3",
        name="pod-kill",
        title="everything of the master's pod is killed at once",
        run=crashes.pod_kill,
        restored_within_s=ELECTED_S,
        short=True,
    ),
    PodDrill(
        number="4",
        name="wrong-secret",
        title="a node with another secret stays out and says so",
        run=strangers.wrong_secret,
        restored_within_s=PLANNED_S,
        short=True,
    ),
    PodDrill(
        number="5",
        name="hung",
        title="a broker's loop stands still",
        run=probing.hung,
        restored_within_s=PLANNED_S,
        short=True,
    ),
    PodDrill(
        number="7",
        name="cut-off",
        title="the master's node loses its network",
        run=crashes.cut_off,
        restored_within_s=ELECTED_S,
        short=True,
    ),
    PodDrill(
        number="8",
        name="container-kill",
        title="each container of a slave and of the master is killed alone",
        run=crashes.container_kill,
        restored_within_s=ELECTED_S,
    ),
    PodDrill(
        number="9",
        name="upgrade-rollback",
        title="another image, and back again",
        run=planned.upgrade_rollback,
        restored_within_s=PLANNED_S,
    ),
    PodDrill(
        number="10",
        name="slow-start",
        title="a slave builds its queues on a sixtieth of a processor",
        run=probing.slow_start,
        restored_within_s=LOST_SLAVE_S,
        short=True,
    ),
)
