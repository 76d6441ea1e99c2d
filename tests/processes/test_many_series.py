"""Ten thousand artificial topics and groups on a real node: few series with correct sums; a used
one is shown, a deleted one is gone. ``bench/metrics`` measures times."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics

from shared.metrics.bounds import GROUPS_MAX, PAIRS_MAX, TOPICS_MAX, Limits
from shared.metrics.catalogue import BY_NAME
from shared.metrics.family import OTHER
from tests.support.many_topics import Plan, group_name, make_many, topic_name
from tests.support.node import Node, wait_until
from tests.support.prometheus import check
from tests.support.series_budget import series_most

COUNT: Final = int(os.environ.get("TIDEMARK_MANY_TOPICS", "6000"))
PLAN: Final = Plan(queues=1, messages=2, committed=1)
# Half of the pairs, so that pairs are folded as well.
LIMITS: Final = Limits(TOPICS_MAX, min(PAIRS_MAX, COUNT // 2), GROUPS_MAX)
QUEUES: Final = 1000
READ: Callable[[str], Iterable[Metric]] = openmetrics.text_string_to_metric_families
IN, BYTES = "tidemark_broker_messages_in_total", "tidemark_broker_received_bytes_total"
DROPPED = "tidemark_telemetry_series_dropped_total"


def fetch(node: Node, accept: str = "text/plain") -> str:
    request = urllib.request.Request(node.broker_admin_url + "/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text: bytes = answer.read()
    return text.decode()


class Scrape:
    """Samples by name, then by label values in the catalogue's order."""

    def __init__(self, text: str) -> None:
        self.lines = [line for line in text.splitlines() if not line.startswith("#")]
        self.found: dict[str, dict[tuple[str, ...], float]] = {}
        for line in self.lines:
            name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()  # type: ignore[union-attr]
            values = tuple(re.findall(r'="([^"]*)"', labels or ""))
            samples = self.found.setdefault(name, {})
            assert values not in samples, line
            samples[values] = float(value)

    def sum(self, name: str) -> float:
        return sum(self.found[name].values())

    def of(self, name: str, label: str) -> Counter[str]:
        """Return the number of series of a family for each value of a label."""
        place = BY_NAME[name].labels.index(label)
        return Counter(values[place] for values in self.found[name])


@pytest.mark.timeout(900)
def test_made_up_names_do_not_make_series_without_end(tmp_path: Path) -> None:
    broker = {"pair_series_max": LIMITS.pairs, "queue_series_max": QUEUES}
    with Node(tmp_path, broker=broker) as node:
        node.start()
        node.wait_ready()
        asyncio.run(make_many(node.api_url, COUNT, PLAN))
        openmetrics_text = fetch(node, "application/openmetrics-text;version=1.0.0")
        families = {family.name: family for family in READ(openmetrics_text)}
        assert families["tidemark_broker_messages_in"].samples

        def whole() -> Scrape | None:
            """Return a scrape whose figures cover all groups that were made; None if they do not
            yet."""
            scrape = Scrape(fetch(node))
            lag = COUNT * (PLAN.messages - PLAN.committed)
            known = sum(scrape.found.get("tidemark_group_lag_messages", {}).values())
            return scrape if known == lag else None

        wait_until(lambda: whole() is not None, "a look at all groups", 120)
        scrape = whole()
        assert scrape is not None
        assert len(scrape.lines) <= series_most("broker", LIMITS, QUEUES)

        # Within the bounds, and everything is there.
        for name, label, most in (
            (IN, "topic", TOPICS_MAX),
            ("tidemark_topic_max_offset_messages", "topic", TOPICS_MAX),
            ("tidemark_group_members", "group", GROUPS_MAX),
            ("tidemark_group_lag_messages", "topic", LIMITS.pairs),
            ("tidemark_group_inflight_messages", "group", LIMITS.pairs),
        ):
            shown = scrape.of(name, label)
            assert len(shown) == min(COUNT, most) + (most < COUNT), name
            assert (OTHER in shown) == (most < COUNT), name
        assert scrape.sum(IN) == COUNT * PLAN.messages
        assert scrape.sum("tidemark_topic_max_offset_messages") == COUNT * PLAN.messages
        assert scrape.found["tidemark_group_lag_queue_max_messages"][OTHER, OTHER] == 1
        by_queue = [
            name for name in scrape.found if "queue" in BY_NAME.get(name, BY_NAME[IN]).labels
        ]
        assert by_queue
        assert sum(len(scrape.found[name]) for name in by_queue) <= QUEUES
        for name in (BYTES, "tidemark_group_lag_messages"):
            if OTHER in scrape.of(name, "topic"):
                assert scrape.found[DROPPED][name,] >= COUNT - TOPICS_MAX
        assert check("promtool", "check", "metrics", text=fetch(node)).strip() == ""

        # One that is folded and then used is shown, and nothing is counted twice or lost.
        shown = scrape.of(IN, "topic")
        folded = (
            next(name for name in map(topic_name, reversed(range(COUNT))) if name not in shown)
            if COUNT > TOPICS_MAX
            else topic_name(0)
        )
        messages = {"messages": [{"body_text": "x" * 1000}] * 50}
        sent = 0

        def is_shown() -> bool:
            nonlocal sent
            assert node.request_json("POST", f"/v1/topics/{folded}/messages", messages)[0] == 200
            sent += 50
            return folded in Scrape(fetch(node)).of(IN, "topic")

        wait_until(is_shown, f"{folded} to be shown", 120)
        after = Scrape(fetch(node))
        assert len(after.of(IN, "topic")) <= TOPICS_MAX + 1
        for values, value in scrape.found[IN].items():
            assert after.found[IN].get(values, value) >= value, values
        risen = sum(
            value - scrape.found[IN].get(values, 0) for values, value in after.found[IN].items()
        )
        assert risen == sent

        # What is deleted is gone, with its pairs.
        group = group_name(int(folded.rpartition("-")[2]))
        assert node.request_json("DELETE", f"/v1/topics/{folded}")[0] == 204
        assert node.request_json("DELETE", f"/v1/groups/{group}")[0] == 204

        def is_gone() -> bool:
            text = fetch(node)
            return f'"{folded}"' not in text and f'"{group}"' not in text

        wait_until(is_gone, "all series of a deleted topic and group to go", 60)
