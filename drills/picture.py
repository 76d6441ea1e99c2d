"""Draw acks per second and the role of every node over time, as SVG.

The picture is drawn only if matplotlib is installed; the report contains the same facts as text.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from drills.running import Session

STEP_S: Final = 0.5
COLOURS: Final = {
    "master": "#2a7f3f",
    "promoting": "#9bd1a6",
    "candidate": "#e8c547",
    "fenced": "#d1495b",
    "in-sync": "#4f83cc",
    "catchup": "#a9c5ee",
    "follower": "#cfd8e6",
    "truncating": "#b07aa1",
    "resync": "#8c5a99",
    "halted": "#4a0d0d",
    "silent": "#eeeeee",
}
OTHER: Final = "#bbbbbb"


class NoPictures(Exception):
    """matplotlib is not installed."""


def draw(session: Session, path: Path) -> None:
    """Write the picture of a session to path. Raises NoPictures."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise NoPictures("matplotlib is not installed: pip install matplotlib") from None
    span = max(1.0, session.ended - session.began)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidemark", "font.size": 8}):
        figure = Figure(figsize=(max(7.0, min(24.0, span / 20)), 3.8), constrained_layout=True)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        counts: Counter[int] = Counter()
        for acked_at, messages in session.acks:
            counts[int((acked_at - session.began) / STEP_S)] += messages
        steps = range(int(span / STEP_S) + 1)
        times, rates = [at * STEP_S for at in steps], [counts[at] / STEP_S for at in steps]
        above.fill_between(times, rates, step="post", color="#4f83cc", linewidth=0)
        above.set_ylabel("messages acked per second")
        above.set_ylim(bottom=0)
        for moment, number in session.faults:
            for axes in (above, below):
                axes.axvline(moment - session.began, color="#d1495b", linewidth=0.7)
            top = above.get_ylim()[1]
            above.text(moment - session.began, top, number, color="#d1495b", fontsize=7)
        nodes = sorted({change.node for change in session.changes})
        used: set[str] = set()
        for row, node in enumerate(nodes):
            changes = [change for change in session.changes if change.node == node]
            for place, change in enumerate(changes):
                until = changes[place + 1].at if place + 1 < len(changes) else session.ended
                role = change.role.lower().replace("_", "-")
                used.add(role)
                left, colour = change.at - session.began, COLOURS.get(role, OTHER)
                below.barh(row, until - change.at, left=left, color=colour, height=0.8)
        below.set_yticks(range(len(nodes)), labels=nodes)
        below.set_xlabel("seconds")
        below.legend(
            handles=[Patch(color=COLOURS.get(role, OTHER), label=role) for role in sorted(used)],
            ncols=len(used) or 1,
            frameon=False,
            fontsize=6,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.45),
        )
        figure.savefig(path, metadata={"Date": None})
