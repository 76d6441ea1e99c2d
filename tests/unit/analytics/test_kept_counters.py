"""Counters that collecting keeps by default: evidence for the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analytics.jobs import backfill, collect
from analytics.kernel.shape import ACK_SECONDS, FLUSH_SECONDS, PUT_SECONDS, TIMED
from analytics.sources.prometheus.options import COLLECTED
from shared.metrics.catalogue.ha import HA_ACK_DURATION_SECONDS
from shared.metrics.catalogue.log import LOG_FLUSH_DURATION_SECONDS
from shared.metrics.catalogue.requests import BROKER_PUT_DURATION_SECONDS


def kept(
    job: Any, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...] | None:
    """The counters that the options of a command line name."""
    seen: list[Any] = []

    class Enough(Exception):
        pass

    def run(_: object, options: Any) -> None:
        seen.append(options)
        raise Enough

    monkeypatch.setattr(job, "started", lambda *_: None)
    monkeypatch.setattr(job, "run", run)
    given = ["--tables", str(tmp_path), "--source", "prometheus", "--option", "url=http://p:9090"]
    CliRunner().invoke(job.command, [*given, *arguments])
    (options,) = seen
    found: tuple[str, ...] | None = options.counters
    return found


@pytest.mark.parametrize(
    ("job", "more"),
    [
        (collect, ["--checkpoint", "c"]),
        (backfill, ["--since", "2026-01-01T00:00", "--before", "2026-01-01T01:00"]),
    ],
)
def test_times_of_sends_flushes_and_replicas_are_kept_and_others_when_named(
    job: Any, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(kept(job, more, tmp_path, monkeypatch) or ()) == TIMED
    named = kept(job, [*more, "--counter", "a_total"], tmp_path, monkeypatch)
    assert set(named or ()) == {*TIMED, "a_total"}
    assert kept(job, [*more, "--counter", "all"], tmp_path, monkeypatch) is None


def test_a_prometheus_is_asked_for_them() -> None:
    for name in TIMED:
        assert name in COLLECTED


def test_brokers_export_them() -> None:
    families = (BROKER_PUT_DURATION_SECONDS, LOG_FLUSH_DURATION_SECONDS, HA_ACK_DURATION_SECONDS)
    assert [family.name for family in families] == [PUT_SECONDS, FLUSH_SECONDS, ACK_SECONDS]
