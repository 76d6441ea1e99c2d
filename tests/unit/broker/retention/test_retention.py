"""Which log files may be deleted: every combination of reasons to keep and to delete one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.retention.retention import (
    HOUR_MS,
    Held,
    LogFile,
    Now,
    Pressure,
    Stay,
    Why,
    goes_by_age_at,
    judge_oldest,
    pressure_of,
)
from services.broker.retention_policy import Policy, parse_hours
from shared.files.disk import Space

DAY_MS = 24 * HOUR_MS
POLICY = Policy(
    age_ms=3 * DAY_MS,
    delete_hours=frozenset({4}),
    size_max=0,
    used_percent_max=75,
    forcible_percent=85,
    warning_percent=90,
    forcibly=True,
)
NOW_MS = 1_700_000_000_000
OLD = NOW_MS - POLICY.age_ms
FILES = [LogFile(0, 100, OLD), LogFile(100, 200, NOW_MS)]
FREE = Held(dispatched_durable=150, confirmed=150, snapshot_start=100)


def now(*, hour: int = 5, pressure: Pressure = Pressure.NONE, log_bytes: int = 200) -> Now:
    return Now(NOW_MS, hour, pressure, log_bytes)


def test_the_share_used_is_rounded_up_to_whole_percent() -> None:
    assert Space(900, 100).used_percent == 90
    assert Space(9001, 999).used_percent == 91
    assert Space(0, 100).used_percent == 0
    assert Space(0, 0).used_percent is None
    assert Space(-1, 100).used_percent is None


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        (75, Pressure.NONE),
        (76, Pressure.EXPIRED_GO),
        (85, Pressure.EXPIRED_GO),
        (86, Pressure.FORCED),
        (90, Pressure.FORCED),
        (91, Pressure.SENDS_STOP),
        (100, Pressure.SENDS_STOP),
    ],
)
def test_each_threshold_is_passed_and_not_met(percent: int, expected: Pressure) -> None:
    assert pressure_of([percent], POLICY) is expected
    assert pressure_of([percent, 10], POLICY) is expected
    assert pressure_of([10, percent], POLICY) is expected


def test_a_disk_that_cannot_be_measured_lets_expired_files_go() -> None:
    assert pressure_of([None, 10], POLICY) is Pressure.EXPIRED_GO
    assert pressure_of([None, 86], POLICY) is Pressure.FORCED


OTHERS: list[tuple[int, bool, int | None]] = [
    *((needed_from, False, None) for needed_from in (0, 99, 100)),
    *((0, True, master_from) for master_from in (None, 99, 100)),
]
"""What other nodes ask for: needed_from, by_master, master_from."""


def test_every_combination_of_reasons_to_keep_and_to_delete() -> None:
    seen = set()
    for is_last, dispatched, confirmed, snapshot, expired, is_hour, pressure, forcibly, size, (
        needed_from,
        by_master,
        master_from,
    ) in itertools.product(
        (False, True),
        (99, 100),
        (99, 100),
        (None, 99, 100),
        (False, True),
        (False, True),
        Pressure,
        (False, True),
        (0, 150),
        OTHERS,
    ):
        files = [LogFile(0, 100, OLD if expired else OLD + 1), *([] if is_last else FILES[1:])]
        policy = POLICY._replace(forcibly=forcibly, size_max=size)
        verdict = judge_oldest(
            files,
            Held(
                dispatched,
                confirmed,
                snapshot,
                needed_from,
                by_master=by_master,
                master_from=master_from,
            ),
            policy,
            now(hour=4 if is_hour else 5, pressure=pressure),
        )
        assert verdict.file == files[0]
        assert (verdict.why is None) != (verdict.stay is None)
        if is_last:
            assert verdict.stay is Stay.LAST
        elif dispatched < 100:
            assert verdict.stay is Stay.NOT_DISPATCHED
        elif confirmed < 100:
            assert verdict.stay is Stay.NOT_CONFIRMED
        elif snapshot is None:
            assert verdict.stay is Stay.NO_SNAPSHOT
        elif snapshot < 100:
            assert verdict.stay is Stay.SNAPSHOT
        elif by_master and master_from == 100:
            assert verdict.why is Why.MASTER
        elif by_master:
            forced = forcibly and pressure >= Pressure.FORCED
            assert verdict.why is (Why.PRESSURE if forced else None)
            assert verdict.stay is (None if forced else Stay.MASTER_KEEPS)
        elif needed_from == 99 and not (forcibly and pressure >= Pressure.FORCED):
            assert verdict.stay is Stay.NEEDED
        elif size:
            assert verdict.why is Why.SIZE
        elif forcibly and pressure >= Pressure.FORCED:
            assert verdict.why is Why.PRESSURE
        elif expired and (is_hour or pressure >= Pressure.EXPIRED_GO):
            assert verdict.why is Why.AGE
        else:
            assert verdict.stay is Stay.NOTHING_ASKS
        seen.add(verdict.why or verdict.stay)
    assert seen == {*Why, *Stay}


def test_a_log_without_files_has_nothing_to_judge() -> None:
    assert judge_oldest([], FREE, POLICY, now()) == (None, None, None)


def test_a_log_as_large_as_allowed_stays() -> None:
    policy = POLICY._replace(size_max=200)
    assert judge_oldest(FILES, FREE, policy, now(log_bytes=200)).stay is Stay.NOTHING_ASKS
    assert judge_oldest(FILES, FREE, policy, now(log_bytes=201)).why is Why.SIZE


@given(
    modified_ms=st.integers(NOW_MS - 9 * DAY_MS, NOW_MS),
    hours=st.frozensets(st.integers(0, 23), max_size=3),
    offset_s=st.sampled_from([0, 3600, -12_600, 43_200]),
    pressure=st.sampled_from(Pressure),
)
def test_the_announced_time_is_the_first_at_which_age_takes_the_file(
    modified_ms: int, hours: frozenset[int], offset_s: int, pressure: Pressure
) -> None:
    policy = POLICY._replace(delete_hours=hours, forcibly=False)
    file = LogFile(0, 100, modified_ms)

    def goes(at_ms: int) -> bool:
        hour = (at_ms + offset_s * 1000) // HOUR_MS % 24
        judged = judge_oldest([file, FILES[1]], FREE, policy, Now(at_ms, hour, pressure, 200))
        return judged.why is Why.AGE

    at = goes_by_age_at(file, policy, now(pressure=pressure), offset_s)
    if not hours and pressure is Pressure.NONE:
        return  # no hour ever comes
    assert at >= NOW_MS
    assert goes(at)
    if at > NOW_MS:
        assert not goes(at - 1)


def test_hours_are_read_as_the_reference_writes_them() -> None:
    assert parse_hours("04") == {4}
    assert parse_hours("01;13") == {1, 13}
    for text in ("", "24", "4;", "x", "-1", "٤"):
        with pytest.raises(ValueError, match="not an hour"):
            parse_hours(text)
