"""Cases of requests and of dispatch."""

from __future__ import annotations

from typing import Final

from tests.support.alert_cases.healthy import STEPS, Case, always, growing, series

BROKER: Final = "n0/broker"
DISPATCHED: Final = series("tidemark_log_dispatched_offset_bytes", BROKER)
CONFIRMED: Final = series("tidemark_log_confirm_offset_bytes", BROKER)
LATE: Final = series("tidemark_timer_overdue_seconds", BROKER)


def results(result: str) -> str:
    """Return the counter of sends with that result."""
    return series("tidemark_broker_put_results_total", BROKER, result=result)


def rejected(code: str, pool: str = "pull") -> str:
    """Return the counter of rejected requests."""
    return series("tidemark_broker_requests_rejected_total", BROKER, pool=pool, code=code)


def errors(reason: str) -> str:
    """Return the counter of dispatch errors."""
    return series("tidemark_dispatch_errors_total", "n0/reput", reason=reason)


REQUEST_CASES: Final = (
    Case(
        "One send of a hundred that fails pages after five minutes",
        {results("busy"): f"0x20 0+30x{STEPS}"},
        (("14m", ()), ("17m", ("TidemarkSendsFail",))),
    ),
    Case(
        "Sends that fail during a switchover of a minute do not",
        {results("busy"): f"0x20 300 600 600x{STEPS}"},
        (("13m", ()), ("15m", ()), ("30m", ())),
    ),
    Case(
        "Faults of clients, and no sends at all, cause no alert",
        {
            results("ok"): always(0),
            results("invalid"): f"0x80 0+60x{STEPS}",
            rejected("unknown-topic"): growing(600),
            rejected("overloaded", "put"): growing(600),
        },
        (("20m", ()), ("60m", ())),
    ),
    Case(
        "A hundredth of the sends that takes seven tenths of a second makes a ticket",
        {
            series(
                "tidemark_broker_put_duration_seconds_bucket", BROKER, ack="disk", le=le
            ): growing(by)
            for le, by in (("0.01", 0), ("0.1", 2900))
        },
        (("3m", ()), ("8m", ("TidemarkPutSlow",))),
    ),
    Case(
        "Pulls that are refused twice a second page",
        {rejected("overloaded"): f"0x20 0+60x{STEPS}"},
        (("13m", ()), ("20m", ("TidemarkRejecting",))),
    ),
    Case(
        "Damage that was met once is reported for a while",
        {rejected("corrupt-record"): f"0x20 1x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkDamage",)), ("45m", ())),
    ),
    Case(
        "Damage is reported even if its code was never counted before",
        {rejected("internal", "admin"): f"_x20 1x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkDamage",)), ("45m", ())),
    ),
    Case(
        "An error of dispatch pages; a full disk has an alert of its own",
        {errors("queue-gap"): f"_x20 1x{STEPS}", errors("disk-full"): f"0x60 0+10x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkDispatchErrors",)), ("40m", ())),
    ),
    Case(
        "Dispatch that stands still while messages wait pages",
        {DISPATCHED: f"5000+3000x20 65000x{STEPS}"},
        (("12m", ()), ("15m", ("TidemarkDispatchStuck",)), ("30m", ("TidemarkDispatchStuck",))),
    ),
    Case(
        "That of a slave makes a ticket, and silences no group: they are read from the master",
        {
            series(
                "tidemark_log_dispatched_offset_bytes", "n1/broker"
            ): f"5000+3000x20 65000x{STEPS}"
        },
        (("12m", ()), ("15m", ("TidemarkSlaveDispatchStuck",))),
    ),
    Case(
        "Dispatch that pauses for half a minute does not, nor does an idle node",
        {
            DISPATCHED: f"5000+3000x20 65000 65000 74000+3000x16 122000x{STEPS}",
            CONFIRMED: f"5000+3000x39 122000x{STEPS}",
        },
        (("12m", ()), ("13m", ()), ("40m", ())),
    ),
    Case(
        "One message after a long silence is no standstill",
        {
            DISPATCHED: f"65000x60 66000x{STEPS}",
            CONFIRMED: f"65000x59 66000x{STEPS}",
        },
        (("30m", ()), ("31m", ()), ("33m", ())),
    ),
    Case(
        "Messages that become visible three seconds late make a ticket",
        {series("tidemark_dispatch_lag_seconds", "n0/reput"): f"0x20 3x{STEPS}"},
        (("12m", ()), ("15m", ("TidemarkDispatchSlow",))),
    ),
    Case(
        "Delayed messages that are late make a ticket",
        {LATE: f"0x20 8x{STEPS}"},
        (("19m", ()), ("21m", ("TidemarkTimerOverdue",))),
    ),
    Case(
        "Lateness that is not known is none",
        {LATE: "8x2 stale"},
        (("4m", ()), ("15m", ())),
    ),
    Case(
        "Connections beyond the limit make a ticket",
        {
            series("tidemark_broker_connections_refused_total", BROKER, reason="limit"): (
                f"0x20 3x{STEPS}"
            )
        },
        (("9m", ()), ("12m", ("TidemarkConnectionLimit",))),
    ),
    Case(
        "A clock that steps back makes a ticket",
        {series("tidemark_broker_clock_steps_total", BROKER): f"0x20 1x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkClockStepped",))),
    ),
)
