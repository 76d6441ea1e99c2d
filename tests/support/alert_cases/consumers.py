"""Cases of consumer groups."""

from __future__ import annotations

from typing import Final

from tests.support.alert_cases.healthy import HEALTHY, STEPS, Case, always, series

START: Final = 20
"""Steps before the event of a case, which happens at 10 minutes."""


def of_pair(metric: str, node: str = "n0", **labels: str) -> str:
    """Return a series of the group ``orders`` on its topic."""
    return series(
        f"tidemark_group_{metric}", f"{node}/broker", group="orders", topic="orders", **labels
    )


def of_group(metric: str, node: str = "n0") -> str:
    """Return a series of the whole group ``orders``."""
    return series(f"tidemark_group_{metric}", f"{node}/broker", group="orders")


LAG: Final = of_pair("lag_seconds", kind="main")
NO_MEMBERS: Final = {
    of_group("members"): f"2x{START - 1} 0x{STEPS}",
    of_pair("subscribed"): f"1x{START - 1} 0x{STEPS}",
}
LOST: Final = of_pair("skipped_messages_total", reason="expired")
OLDEST: Final = series("tidemark_log_oldest_message_timestamp_seconds", "n0/broker")
EXPIRING: Final = series("tidemark_retention_expiring_groups", "n0/broker")
UP: Final = series("up", "n0/broker")


def moved(metric: str, values: str, *, grouped: bool = False, **labels: str) -> dict[str, str]:
    """Return a series that n0 exports for 15 minutes, and n1, the next master, from 16 on."""
    if grouped:
        before, after = of_group(metric), of_group(metric, "n1")
    else:
        before, after = of_pair(metric, **labels), of_pair(metric, "n1", **labels)
    return {before: f"{values}x30 stale", after: f"_x31 {values}x{STEPS}"}


CONSUMER_CASES: Final = (
    Case("A healthy cluster is silent", {}, (("3m", ()), ("30m", ()), ("70m", ()))),
    Case(
        "A group whose consumers died has stopped, and is not reported as slow too",
        {LAG: f"1x{START} 1+30x{STEPS}", **NO_MEMBERS},
        (("12m", ()), ("14m", ("TidemarkGroupStopped",)), ("30m", ("TidemarkGroupStopped",))),
    ),
    Case(
        "Consumers that restart within 75 seconds cause no alert",
        {
            LAG: f"1x{START} 30 60 90 1x{STEPS}",
            of_group("members"): f"2x{START} 0x2 2x{STEPS}",
            of_pair("subscribed"): f"1x{START} 0x2 1x{STEPS}",
        },
        (("12m", ()), ("14m", ()), ("30m", ())),
    ),
    Case(
        "A stopped group is remembered across a failover",
        {
            **moved("lag_seconds", "500", kind="main"),
            of_group("members"): "2x4 0x26 stale",
            of_group("members", "n1"): f"_x31 0x{STEPS}",
            of_pair("subscribed"): "1x4 0x26 stale",
            of_pair("subscribed", "n1"): f"_x31 0x{STEPS}",
            **moved("lag_objective_seconds", "60", grouped=True),
        },
        (
            ("10m", ("TidemarkGroupStopped",)),
            ("30m", ("TidemarkGroupStopped",)),
        ),
    ),
    Case(
        "A group that was deleted takes its alarm with it",
        {
            key: f"{values} stale"
            for key, values in {
                LAG: "500x60",
                of_group("members"): "2x4 0x56",
                of_pair("subscribed"): "1x4 0x56",
            }.items()
        },
        (("20m", ("TidemarkGroupStopped",)), ("32m", ())),
    ),
    Case(
        "A group without members for a day is abandoned, and pages no operator",
        {
            LAG: f"9000+30x{STEPS}",
            of_group("members"): always(0),
            of_pair("subscribed"): always(0),
        },
        (("30m", ()), ("65m", ("TidemarkGroupAbandoned",))),
    ),
    Case(
        "A member that does not move has stalled; much later it is late as well",
        {LAG: f"1x{START} 1+30x{STEPS}", of_pair("stuck_queues"): f"0x{START} 1x{STEPS}"},
        (
            ("12m", ()),
            ("14m", ("TidemarkGroupStalled",)),
            ("24m", ("TidemarkGroupFallingBehind", "TidemarkGroupStalled")),
            (
                "34m",
                ("TidemarkGroupFallingBehind", "TidemarkGroupLagObjective", "TidemarkGroupStalled"),
            ),
        ),
    ),
    Case(
        "Four fifths of the pace is falling behind, and in the end beyond the objective",
        {LAG: f"1x{START} 1+6x{STEPS}"},
        (
            ("24m", ()),
            ("27m", ("TidemarkGroupFallingBehind",)),
            ("55m", ("TidemarkGroupFallingBehind", "TidemarkGroupLagObjective")),
        ),
    ),
    Case(
        "A group that catches up at triple speed after a replay is left alone",
        {LAG: f"1x{START} 20000-60x{STEPS}"},
        (("20m", ()), ("40m", ())),
    ),
    Case(
        "A constant lag of five objectives and more is reported, but not as falling behind",
        {LAG: always(400)},
        (("14m", ()), ("17m", ("TidemarkGroupLagObjective",))),
    ),
    Case(
        "A constant lag below five objectives is not",
        {LAG: always(290)},
        (("40m", ()),),
    ),
    Case(
        "A batch consumer whose lag comes and goes is healthy",
        {LAG: " ".join(["0 30 60 90 0 30 60 90"] * 20)},
        (("20m", ()), ("40m", ())),
    ),
    Case(
        "What is unread is nearly as old as the log, and the next file goes: a race with retention",
        {LAG: always(900), OLDEST: f"-1000+30x{STEPS}", EXPIRING: always(1)},
        (("3m", ()), ("8m", ("TidemarkGroupRetentionRace",))),
    ),
    Case(
        "In a new log all is unread since its beginning, and nothing is about to go",
        {LAG: f"0+30x{STEPS}", OLDEST: always(0), EXPIRING: always(0)},
        (("9m", ()),),
    ),
    Case(
        "Messages that retention deleted unread are reported once",
        {LOST: f"0x{START} 500x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkGroupMessagesLost",)), ("45m", ())),
    ),
    Case(
        "A loss that is the first ever is seen though no zero came before it",
        {LOST: f"_x{START} 500x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkGroupMessagesLost",)), ("45m", ())),
    ),
    Case(
        "A loss of before the first look is not news, nor is a counter that begins anew",
        {
            **{key: f"_x{START} 1x{STEPS}" for key in (UP, of_pair("subscribed"))},
            LOST: f"_x{START} 500x20 0x{STEPS}",
        },
        (("11m", ()), ("12m", ()), ("25m", ())),
    ),
    Case(
        "A commit beyond the end pages after a minute",
        {of_pair("ahead_queues"): f"0x{START} 2x{STEPS}"},
        (("11m", ()), ("12m", ("TidemarkGroupOffsetAhead",))),
    ),
    Case(
        "A commit beyond the end for one look does not",
        {of_pair("ahead_queues"): f"0x{START} 2x0 0x{STEPS}"},
        (("11m", ()), ("12m", ())),
    ),
    Case(
        "A reset is shown",
        {of_pair("offset_resets_total", direction="backward"): f"0x{START} 4x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkGroupOffsetReset",)), ("45m", ())),
    ),
    Case(
        "Dead letters make a ticket; a restart that begins their count anew does not",
        {of_pair("dead_messages_total"): f"7x{START} 0x{START} 1x{STEPS}"},
        (("12m", ()), ("23m", ("TidemarkDeadLetters",)), ("60m", ())),
    ),
)
assert LAG in HEALTHY
assert LOST in HEALTHY
