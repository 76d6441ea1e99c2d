"""Cases of disks."""

from __future__ import annotations

from typing import Final

from tests.support.alert_cases.healthy import STEPS, Case, always, series

BROKER: Final = "n1/broker"
FREE: Final = series("tidemark_store_free_bytes", BROKER, volume="log")
DELETED: Final = series("tidemark_log_segments_deleted_total", BROKER, reason="disk_pressure")

STORAGE_CASES: Final = (
    Case(
        "A volume with less than a tenth left pages",
        {FREE: f"60000000000x20 5000000000x{STEPS}"},
        (("14m", ()), ("17m", ("TidemarkStoreNearlyFull",))),
    ),
    Case(
        "A volume that is nearly full for two minutes does not",
        {FREE: f"60000000000x20 5000000000x3 60000000000x{STEPS}"},
        (("13m", ()), ("17m", ())),
    ),
    Case(
        "One of three volumes is enough, and is reported once",
        {
            series("tidemark_store_free_bytes", BROKER, volume="index"): always(4),
            series("tidemark_store_capacity_bytes", BROKER, volume="index"): always(100),
        },
        (("4m", ()), ("7m", ("TidemarkStoreNearlyFull",))),
    ),
    Case(
        "Sends that are refused at a fifth page as well",
        {
            FREE: always(2e10),
            series("tidemark_retention_sends_refused", BROKER): f"0x20 1x{STEPS}",
        },
        (("14m", ()), ("17m", ("TidemarkStoreNearlyFull",))),
    ),
    Case(
        "A disk that will be full tomorrow makes a ticket after an hour",
        {FREE: f"39000000000-20000000x{STEPS}"},
        (("50m", ()), ("65m", ("TidemarkStoreFillsUp",))),
    ),
    Case(
        "A disk on which retention makes room does not",
        {FREE: " ".join(["39000000000-200000000x9"] * 17)},
        (("50m", ()), ("65m", ()), ("79m", ())),
    ),
    Case(
        "Log files that go before their time make a ticket",
        {DELETED: f"0x20 2x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkDiskPressure",))),
    ),
    Case(
        "Flushes that take half a second make a ticket after ten minutes",
        {
            series("tidemark_log_flush_duration_seconds_bucket", BROKER, le=le): f"0+{by}x{STEPS}"
            for le, by in (("0.01", 0), ("0.1", 0))
        },
        (("8m", ()), ("13m", ("TidemarkSlowDisk",))),
    ),
)
