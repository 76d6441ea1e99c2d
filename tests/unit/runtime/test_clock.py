from __future__ import annotations

import time
from pathlib import Path

import pytest

from shared.runtime.clock import BootId, SystemClock, boot_id, utc_offset_s
from tidemark.clock import Clock


def test_the_boot_id_is_the_kernels_uuid_in_two_halves(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    file.write_text("00000000-0000-0001-8000-000000000002\n")
    assert boot_id(file) == BootId(high=1, low=(1 << 63) | 2)


def test_the_boot_id_of_this_machine_stays_and_fits_its_slots() -> None:
    assert boot_id() == boot_id()
    assert all(0 <= half < 1 << 64 for half in boot_id())


def test_an_unreadable_boot_id_is_an_error_and_not_a_guess(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("rubbish")
    with pytest.raises(ValueError, match="badly formed"):
        boot_id(tmp_path / "boot_id")


def test_the_system_clock_reads_milliseconds() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.wall_ms() - time.time() * 1000) < 1000
    assert clock.boot_ms() >= clock.monotonic() * 1000 - 1000


def test_the_offset_of_local_time_follows_the_season(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    assert utc_offset_s(1_705_000_000_000) == 3600
    assert utc_offset_s(1_720_000_000_000) == 7200
    monkeypatch.delenv("TZ")
    time.tzset()
