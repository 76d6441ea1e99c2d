from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drills.faults import FAULTS_VARIABLE, Fault, FaultPage
from drills.faulty import SENDS
from services.broker.log.term import GrantedTerm

PROGRAM = """
import os, sys, time
from pathlib import Path
from services.ha.shell import hooks
from shared.runtime.clock import SystemClock
from drills.faults import FAULTS_VARIABLE, FaultPage
from drills.faulty import install
install(FaultPage(Path(os.environ[FAULTS_VARIABLE])))
clock = SystemClock()
print(clock.boot_ms() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
print(clock.wall_ms() - time.time_ns() // 1_000_000)
began = time.monotonic()
with open(sys.argv[1], "wb") as file:
    os.fdatasync(file.fileno())
print(int((time.monotonic() - began) * 1000))
hooks.before("cut-6")
hooks.before("cut-7")
print("lived")
"""


def run(page: Path, scratch: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(scratch)],
        env={**os.environ, FAULTS_VARIABLE: str(page)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.split()


def test_a_page_says_the_same_to_everybody_who_opens_it(tmp_path: Path) -> None:
    one, other = FaultPage(tmp_path / "faults"), FaultPage(tmp_path / "faults")
    one.set(Fault.WALL_STEP_MS, -3_600_000)
    one.arm("cut-7", "stop")
    assert other.get(Fault.WALL_STEP_MS) == -3_600_000
    assert other.armed == ("stop", "cut-7")
    one.clear()
    assert other.get(Fault.WALL_STEP_MS) == 0
    assert other.armed is None


def test_a_boot_time_clock_never_goes_back(tmp_path: Path) -> None:
    page = FaultPage(tmp_path / "faults")
    page.set(Fault.BOOT_STEP_MS, 60_000)
    page.clear()
    assert page.get(Fault.BOOT_STEP_MS) == 60_000


def test_the_broker_stops_where_a_send_is_answered() -> None:
    assert (GrantedTerm.reached.__module__, GrantedTerm.reached.__name__) == SENDS


def test_the_name_of_a_step_has_a_bound(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too long"):
        FaultPage(tmp_path / "faults").arm("x" * 300, "kill")


def test_a_service_without_faults_sees_its_machine_as_it_is(tmp_path: Path) -> None:
    FaultPage(tmp_path / "faults")
    status, said = run(tmp_path / "faults", tmp_path / "file")
    assert status == 0
    assert said[-1] == "lived"
    assert abs(int(said[0])) < 1000
    assert abs(int(said[1])) < 1000


def test_a_service_sees_the_clocks_the_disk_and_the_steps_that_the_page_says(
    tmp_path: Path,
) -> None:
    page = FaultPage(tmp_path / "faults")
    page.set(Fault.BOOT_STEP_MS, 60_000)
    page.set(Fault.WALL_STEP_MS, -3_600_000)
    page.set(Fault.SYNC_DELAY_MS, 300)
    page.arm("cut-7", "kill")
    began = time.monotonic()
    status, said = run(tmp_path / "faults", tmp_path / "file")
    assert time.monotonic() - began < 60
    assert status == -signal.SIGKILL
    assert "lived" not in said
    assert page.armed is None, "it happens once"
