"""Cases of lag analytics: gone, stuck, without samples."""

from __future__ import annotations

from typing import Final

from tests.support.alert_cases.healthy import STEPS, Case, always, growing, series
from tests.support.alert_cases.nodes import gone

TARGET: Final = "analytics/analytics"
LAST: Final = series("tidemark_analytics_last_success_timestamp_seconds", TARGET, task="evaluate")
TICK: Final = series("tidemark_analytics_newest_tick_timestamp_seconds", TARGET)
GAPS: Final = series("tidemark_analytics_source_gaps_total", TARGET, source="scrape")

ANALYTICS_CASES: Final = (
    Case(
        "A missing exporter is a ticket, and pages no operator",
        gone(TARGET),
        (("11m", ()), ("14m", ()), ("17m", ("TidemarkAnalyticsDown",))),
    ),
    Case(
        "An exporter that cannot read its tables is a ticket as well",
        {series("tidemark_ready", TARGET): f"1x20 0x{STEPS}"},
        (("14m", ()), ("17m", ("TidemarkAnalyticsDown",))),
    ),
    Case(
        "A stalled evaluation is reported once, not also as old ticks",
        {LAST: f"0+30x20 600x{STEPS}", TICK: f"0+30x20 600x{STEPS}"},
        (("14m", ()), ("22m", ("TidemarkAnalyticsStale",)), ("40m", ("TidemarkAnalyticsStale",))),
    ),
    Case(
        "An evaluation that runs and finds no samples is reported by the age of its ticks",
        {TICK: f"0+30x20 600x{STEPS}"},
        (("14m", ()), ("22m", ("TidemarkAnalyticsBehind",))),
    ),
    Case(
        "An evaluation that is two minutes late is none",
        {LAST: f"0+30x20 600x4 720+30x{STEPS}", TICK: f"0+30x20 600x4 720+30x{STEPS}"},
        (("12m", ()), ("20m", ())),
    ),
    Case(
        "A cluster without analytics is silent about it",
        {LAST: None, TICK: None, GAPS: None, **gone(TARGET, at=0, discovered=False)},
        (("10m", ()), ("40m", ())),
    ),
    Case(
        "A gap of a source is shown for an hour",
        {GAPS: f"0x20 3x{STEPS}"},
        (("9m", ()), ("12m", ("TidemarkSourceGap",)), ("40m", ("TidemarkSourceGap",))),
    ),
    Case(
        "The first gap of a source that had none before is shown too",
        {
            series("tidemark_analytics_source_gaps_total", TARGET, source="prometheus"): (
                f"_x20 1x{STEPS}"
            )
        },
        (("9m", ()), ("12m", ("TidemarkSourceGap",))),
    ),
    Case(
        "Analytics that evaluates and has no gap is silent",
        {GAPS: always(3), LAST: growing(30)},
        (("10m", ()), ("60m", ())),
    ),
)
