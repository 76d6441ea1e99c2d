"""Cases of processes: gone, hanging, restarted, rolled."""

from __future__ import annotations

from typing import Final

from tests.support.alert_cases.healthy import HEALTHY, STEPS, TARGETS, Case, always, series

IN_SYNC: Final = series("tidemark_ha_in_sync_replicas", "n0/ha")
OTHERS_IN_SYNC: Final = series("tidemark_ha_in_sync_replicas", "n1/ha")
RECOVERED: Final = series("tidemark_recovery_done_bytes", "n1/broker")


def gone(*targets: str, at: int = 20, discovered: bool = True) -> dict[str, str | None]:
    """End all series of the targets after ``at`` steps. discovered: they are still scraped."""
    found: dict[str, str | None] = {}
    for target in targets:
        labels = series("", target)[1:-1]
        for key, values in HEALTHY.items():
            if labels in key:
                found[key] = values.replace(f"x{STEPS}", f"x{at} stale")
        if discovered:
            found[series("up", target)] = f"1x{at} 0x{STEPS}"
    return found


def of_node(node: str) -> tuple[str, ...]:
    """Return the targets of a node."""
    return tuple(target for target in TARGETS if target.startswith(f"{node}/"))


def role(node: str, name: str, values: str) -> dict[str, str]:
    """Return a node's series of one role."""
    return {series("tidemark_ha_role", f"{node}/ha", role=name): values}


def restart(target: str, at: int) -> dict[str, str]:
    """Return one failed scrape, then a process with a later start time."""
    return {
        series("up", target): f"1x{at} 0x0 1x{STEPS}",
        series("tidemark_up_since_timestamp_seconds", target): f"1000x{at} _x0 1600x{STEPS}",
        series("tidemark_ready", target): f"1x{at} _x0 0x1 1x{STEPS}",
    }


def rolled() -> dict[str, str]:
    """Return a rolling update: the slave, a switchover, the old master. Each node is away for half
    a minute."""
    found: dict[str, str] = {}
    for target in of_node("n1"):
        found |= restart(target, 20)
    for target in of_node("n0"):
        found |= restart(target, 44)
    in_sync = f"2x20 1x3 2x20 1x3 2x{STEPS}"
    return {
        **found,
        **role("n0", "master", f"1x40 0x{STEPS}"),
        **role("n1", "master", f"0x41 1x{STEPS}"),
        IN_SYNC: in_sync,
        OTHERS_IN_SYNC: in_sync,
    }


NODE_CASES: Final = (
    Case(
        "A process that does not answer is reported after a minute",
        gone("n1/reput"),
        (("11m", ()), ("12m", ("TidemarkTargetDown",)), ("20m", ("TidemarkTargetDown",))),
    ),
    Case(
        "A process that misses one scrape is not",
        restart("n1/reput", 20),
        (("11m", ()), ("12m", ()), ("30m", ())),
    ),
    Case(
        "A slave that dies leaves its set one copy short",
        {**gone(*of_node("n1")), IN_SYNC: f"2x22 1x{STEPS}"},
        (
            ("12m", ("TidemarkTargetDown",)),
            ("18m", ("TidemarkTargetDown", "TidemarkUnderReplicated")),
        ),
    ),
    Case(
        "A failover after the master's death is no matter of masters",
        {
            **gone(*of_node("n0")),
            **role("n1", "master", f"0x21 1x{STEPS}"),
            **role("n1", "slave", f"1x21 0x{STEPS}"),
            OTHERS_IN_SYNC: f"2x21 1x{STEPS}",
        },
        (
            ("12m", ("TidemarkTargetDown",)),
            ("14m", ("TidemarkTargetDown",)),
            ("18m", ("TidemarkTargetDown", "TidemarkUnderReplicated")),
        ),
    ),
    Case(
        "A rolling update is silent",
        rolled(),
        (("11m", ()), ("12m", ()), ("20m", ()), ("22m", ()), ("24m", ()), ("30m", ())),
    ),
    Case(
        "A set whose targets have all gone from discovery is missed",
        gone(*of_node("s0"), discovered=False),
        (("14m", ()), ("17m", ("TidemarkBrokerGone",)), ("40m", ("TidemarkBrokerGone",))),
    ),
    Case(
        "So are processes of one kind that have all gone while the others stay",
        gone("n0/ha", "n1/ha", discovered=False),
        (("14m", ()), ("17m", ("TidemarkBrokerGone",))),
    ),
    Case(
        "A set that lost one of its nodes from discovery is still there",
        gone(*of_node("n1"), discovered=False),
        (("14m", ()), ("40m", ())),
    ),
    Case(
        "A process that refuses work pages after five minutes",
        {series("tidemark_ready", "n1/broker"): f"1x20 0x{STEPS}"},
        (("15m", ()), ("16m", ("TidemarkNotReady",))),
    ),
    Case(
        "A node that recovers for half an hour is left alone as long as it advances",
        {
            **{
                series("tidemark_ready", f"n1/{each}"): f"0x60 1x{STEPS}"
                for each in ("broker", "ha")
            },
            RECOVERED: f"0+1000x60 60000x{STEPS}",
        },
        (("10m", ()), ("25m", ()), ("40m", ())),
    ),
    Case(
        "A node whose recovery stands still is not",
        {
            series("tidemark_ready", "n1/broker"): always(0),
            RECOVERED: f"0+1000x20 20000x{STEPS}",
        },
        (("10m", ()), ("18m", ("TidemarkNotReady",))),
    ),
    Case(
        "A process that starts again and again makes a ticket",
        {
            series(
                "tidemark_up_since_timestamp_seconds", "n1/reput"
            ): f"1000x20 1600x4 1750x4 1900x4 2050x4 2200x{STEPS}",
        },
        (("13m", ()), ("20m", ("TidemarkRestarting",)), ("60m", ())),
    ),
    Case(
        "Two versions side by side for longer than a roll-out are shown",
        {
            series(
                "tidemark_node_info",
                "n1/broker",
                version=version,
                python="3.11",
                wire_version="1",
                store_format="1",
            ): values
            for version, values in (("1.0", "1x20 stale"), ("1.1", f"_x21 1x{STEPS}"))
        },
        (("30m", ()), ("65m", ()), ("75m", ("TidemarkVersionsDiffer",))),
    ),
    Case(
        "Figures that are minutes old make a ticket",
        {series("tidemark_broker_look_timestamp_seconds", "n0/broker"): f"0+30x20 600x{STEPS}"},
        (("16m", ()), ("18m", ("TidemarkLookOld",))),
    ),
    Case(
        "An answer that is nearly too large to be taken makes a ticket",
        {series("scrape_samples_scraped", "n0/broker"): f"90000x20 350000x{STEPS}"},
        (("19m", ()), ("21m", ("TidemarkScrapeLarge",))),
    ),
    Case(
        "Series that were folded are shown",
        {
            series("tidemark_telemetry_series_dropped_total", "n0/broker", family="topic"): (
                f"0x20 40x{STEPS}"
            )
        },
        (("9m", ()), ("12m", ("TidemarkSeriesDropped",))),
    ),
)
