"""Clocks and limits of this machine, compared with what the settings need."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from tidemark.cli.doctor import machine
from tidemark.cli.doctor.findings import Level
from tidemark.formats import native


def test_a_clock_that_steps_during_the_check_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = [1000.0]
    monkeypatch.setattr(machine, "time", Clock(wall, step_s=0.0))
    assert machine.steps().level is Level.OK
    monkeypatch.setattr(machine, "time", Clock(wall, step_s=-2.5))
    found = machine.steps()
    assert (found.level, found.value, found.unit) == (Level.WARNING, -2500.0, "ms")


class Clock:
    """Time that passes only in sleep."""

    def __init__(self, wall: list[float], *, step_s: float) -> None:
        self._wall, self._step_s, self._mono = wall, step_s, 0.0

    def time(self) -> float:
        return self._wall[0]

    def monotonic(self) -> float:
        return self._mono

    def sleep(self, seconds: float) -> None:
        self._mono += seconds
        self._wall[0] += seconds + self._step_s


def test_a_missing_boot_clock_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.boot_clock().level is Level.OK

    def absent(_: int) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", absent)
    found = machine.boot_clock()
    assert (found.level, found.code) == (Level.ERROR, "doctor-no-boot-clock")


def test_the_kernel_reports_whether_its_clock_is_synchronised() -> None:
    found = machine.synchronised()
    assert found.level in (Level.OK, Level.WARNING, Level.UNKNOWN)
    assert (found.level is Level.OK) == (not found.code)


def test_descriptors_are_compared_with_what_the_settings_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    found = machine.open_files({})
    assert (found.level, found.value, found.limit) == (Level.ERROR, 1024, 64 + 512 + 2048 + 256)
    few = {"connections_max": 16, "store": {"mapped_files_max": 8, "queue_files_mapped_max": 8}}
    assert machine.open_files(few).level is Level.OK
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    assert machine.open_files({}).level is Level.OK


def test_mappings_are_compared_with_those_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/max_map_count").write_text("1000\n")
    assert machine.mappings({}, proc=tmp_path).level is Level.ERROR
    (tmp_path / "sys/vm/max_map_count").write_text("65530\n")
    assert machine.mappings({}, proc=tmp_path).level is Level.OK


def test_locked_memory_matters_only_where_the_settings_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert machine.memory_lock({"lock_files_memory": False}) == []
    (found,) = machine.memory_lock(
        {"lock_files_memory": True, "store": {"commit_log_file_size": 64 << 20}}
    )
    assert (found.level, found.value, found.limit) == (Level.ERROR, 8 << 20, 192 << 20)
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    (found,) = machine.memory_lock({"lock_files_memory": True})
    assert found.level is Level.OK


def test_the_pure_implementation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "WHY_PURE", "they were not compiled")
    found = machine.python()
    assert (found.level, found.code) == (Level.WARNING, "doctor-pure-twins")
    assert "they were not compiled" in found.cause
