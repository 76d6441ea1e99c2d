"""The short fault drills: real processes, network partitions, a judge.

These are the ones that ``tidemark drill`` calls short; ``make drill`` runs all of them. Without the
right to make network namespaces, drills with partitions are skipped with a message.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.etcd import require_etcd
from tests.support.node import PROJECT

pytestmark = [pytest.mark.xdist_group("drills"), pytest.mark.timeout(1800)]

PATIENCE = "1"
"""Limits are scaled by how slow the machine is meanwhile (`drills/pace.py`); that suffices here."""
SEED = os.environ.get("TIDEMARK_DRILL_SEED", str(time.time_ns() % 1_000_000))


def drills(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drills", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_short_drills_pass(tmp_path: Path) -> None:
    done = drills("--short", "--patience", PATIENCE, "--seed", SEED, "--out", str(tmp_path))
    print(done.stdout, done.stderr)
    report = tmp_path / "report.md"
    if report.exists():
        print(report.read_text(encoding="utf-8"))
    for log in sorted(tmp_path.glob("failed-*.log")):
        print(log.read_text(encoding="utf-8")[-20_000:])
    if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
        assert "Left out" not in done.stderr, "the right to make namespaces is missing"
    assert done.returncode == 0


def test_a_drill_passes_with_its_lease_in_an_etcd_of_three_members(tmp_path: Path) -> None:
    require_etcd()
    done = drills("1", "--lease", "etcd", "--seed", SEED, "--out", str(tmp_path))
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# Fault drills, leases in etcd")
    members = sorted(path.name for path in (tmp_path / "group0" / "etcd").glob("*.log"))
    assert members == ["n0.log", "n1.log", "n2.log"]
    settings = (tmp_path / "group0" / "n0" / "ha.toml").read_text(encoding="utf-8")
    assert 'lease = "etcd"' in settings


def test_every_drill_is_listed_with_its_lease_and_a_description() -> None:
    done = drills("--list")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert len(lines) >= 45
    assert all(len(words) > 4 for words in lines)
    leases = {words[1]: words[2] for words in lines}
    assert leases["kill-master"] == "directory"
    assert leases["lease-down"] == "kubernetes"
    on_etcd = drills("--list", "--lease", "etcd").stdout.splitlines()
    assert {line.split()[2] for line in on_etcd} == {"etcd", "faulty-etcd"}


def test_a_drill_that_does_not_exist_is_named() -> None:
    done = drills("no-such-drill")
    assert done.returncode == 2
    assert "no-such-drill" in done.stderr
