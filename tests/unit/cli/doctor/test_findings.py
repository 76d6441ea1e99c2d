"""Checks run in parallel, end in time, and report what they could not find out."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from tidemark.cli.doctor.findings import Check, Finding, Level, carried_out

ROOT: Final = Path(__file__).resolve().parents[4]
WELL: Final = Finding("a", Level.OK, "it", "is well")


def test_findings_come_in_the_order_of_the_checks() -> None:
    other = WELL._replace(check="b")
    checks = [Check("a", "it", lambda: [WELL]), Check("b", "it", lambda: [other, other])]
    assert carried_out(checks) == [WELL, other, other]


def test_a_check_that_hangs_is_reported_and_the_others_are_kept() -> None:
    hang = threading.Event()

    def hangs() -> list[Finding]:
        hang.wait()
        return []

    began = time.monotonic()
    found = carried_out(
        [Check("disk.kind", "/dead", hangs), Check("a", "it", lambda: [WELL])], seconds=0.2
    )
    hang.set()
    assert time.monotonic() - began < 5
    late, well = found
    assert well == WELL
    assert (late.check, late.level, late.subject) == ("disk.kind", Level.ERROR, "/dead")
    assert late.code == "doctor-timed-out"
    assert (late.limit, late.unit) == (0.2, "s")


def test_a_check_that_fails_is_unknown_and_not_ok() -> None:
    def refused() -> list[Finding]:
        raise PermissionError(13, "Permission denied")

    (found,) = carried_out([Check("disk.kind", "/root", refused)])
    assert found.level is Level.UNKNOWN
    assert "Permission denied" in found.cause
    assert found.code == "doctor-cannot-tell"


def test_a_defect_of_a_check_is_not_a_finding() -> None:
    def broken() -> list[Finding]:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        carried_out([Check("a", "it", broken)])


def test_every_code_of_the_doctor_heads_an_entry_of_the_runbook() -> None:
    sources = (ROOT / "tidemark/cli/doctor").glob("*.py")
    text = " ".join(path.read_text() for path in sources)
    codes = set(re.findall(r'\.(?:error|warning)\(\s*"([a-z-]+)"', text))
    codes |= set(re.findall(r'"(doctor-[a-z-]+)"', text))
    assert {"doctor-network-disk", "doctor-unreachable", "bad-config"} <= codes, "they are found"
    headings = re.findall(
        r"^##+ `([a-z-]+)`$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE
    )
    assert codes - set(headings) == set(), "codes without a heading in docs/runbook.md"
