"""Cases of name services and of the registrations with them."""

from __future__ import annotations

from typing import Final

from tests.support.alert_cases.healthy import HEALTHY, STEPS, Case, always, series
from tests.support.alert_cases.nodes import gone, of_node, restart, role

ONE: Final = "names-0/names"
OTHER: Final = "names-1/names"
MISSING: Final = series("tidemark_names_missing_groups", ONE)
WITHOUT_MASTER: Final = series("tidemark_names_groups_without_master", ONE)
USED: Final = series("tidemark_names_bound_used_ratio", ONE, bound="entries_max")
REGISTERED: Final = series("tidemark_broker_names_registered", "s0/broker")


def refused(code: str, request: str = "register") -> str:
    """Return the counter of requests that a name service refused."""
    return series("tidemark_names_refused_total", ONE, request=request, code=code)


NAMES_CASES: Final = (
    Case(
        "One name service of two that is down is a ticket, also for the brokers that miss it",
        {**gone(ONE), REGISTERED: f"2x21 1x{STEPS}"},
        (
            ("11m", ()),
            ("13m", ("TidemarkNamesDown", "TidemarkNamesNotRegistered")),
            ("40m", ("TidemarkNamesDown", "TidemarkNamesNotRegistered")),
        ),
    ),
    Case(
        "All name services down page, for as long as they are down",
        gone(ONE, OTHER),
        (
            ("11m", ()),
            ("13m", ("TidemarkNamesDown", "TidemarkNamesGone")),
            ("70m", ("TidemarkNamesDown", "TidemarkNamesGone")),
        ),
    ),
    Case(
        "So do name services that have all gone from discovery",
        gone(ONE, OTHER, discovered=False),
        (("11m", ()), ("18m", ("TidemarkNamesGone",))),
    ),
    Case(
        "A restart of one name service is silent although it knows nothing at first",
        {**restart(ONE, 20), MISSING: f"0x20 _x0 2 0x{STEPS}", REGISTERED: f"2x20 1 2x{STEPS}"},
        (("11m", ()), ("13m", ()), ("20m", ())),
    ),
    Case(
        "A cluster without name services is silent about them",
        {
            **{key: None for key in HEALTHY if 'job="tidemark-names"' in key},
            **{
                series(f"tidemark_broker_names_{each}", f"{node}/broker"): always(0)
                for each in ("configured", "registered")
                for node in ("n0", "n1", "s0")
            },
        },
        (("60m", ()),),
    ),
    Case(
        "A broker group that is missing for five minutes pages",
        {MISSING: f"0x20 1x{STEPS}"},
        (("15m", ()), ("16m", ("TidemarkNamesIncomplete",))),
    ),
    Case(
        "A broker group whose master cannot register pages",
        {WITHOUT_MASTER: f"0x20 1x{STEPS}"},
        (("12m", ()), ("13m", ("TidemarkNamesWithoutMaster",))),
    ),
    Case(
        "A failover of a minute does not",
        {WITHOUT_MASTER: f"0x20 1 1 0x{STEPS}"},
        (("11m", ()), ("13m", ()), ("20m", ())),
    ),
    Case(
        "A broker group that has no master at all is reported by both of its alerts",
        {**role("n0", "master", f"1x20 0x{STEPS}"), WITHOUT_MASTER: f"0x20 1x{STEPS}"},
        (("14m", ("TidemarkMasterCount", "TidemarkNamesWithoutMaster")),),
    ),
    Case(
        "A broker that one of two name services refuses is a ticket",
        {REGISTERED: f"2x20 1x{STEPS}"},
        (("12m", ()), ("13m", ("TidemarkNamesNotRegistered",))),
    ),
    Case(
        "A second broker group of one name is a ticket for as long as it registers",
        {refused("broker-group-conflict"): f"0x20 1+1x20 21x{STEPS}"},
        (
            ("9m", ()),
            ("12m", ("TidemarkNamesRefused",)),
            ("25m", ("TidemarkNamesRefused",)),
            ("45m", ()),
        ),
    ),
    Case(
        "Refusals that a restart or a failover causes are none",
        {
            refused("registration-base-unknown"): f"0x20 5x{STEPS}",
            refused("stale-registration"): f"0x20 5x{STEPS}",
            refused("unknown-topic", "route"): f"0+9x{STEPS}",
        },
        (("12m", ()), ("30m", ())),
    ),
    Case(
        "A bound that is nearly used up makes a ticket, and one at four fifths does not",
        {
            USED: f"0.3x20 0.81x{STEPS}",
            series("tidemark_names_bound_used_ratio", OTHER, bound="groups_max"): always(0.8),
        },
        (("19m", ()), ("21m", ("TidemarkNamesNearBound",))),
    ),
    Case(
        "A machine that dies with a name service and a slave on it is reported as both",
        {
            **gone(ONE, *of_node("n1")),
            series("tidemark_ha_in_sync_replicas", "n0/ha"): f"2x22 1x{STEPS}",
        },
        (("14m", ("TidemarkNamesDown", "TidemarkTargetDown")),),
    ),
)
