"""Facts of tables with known answers, however the tables are cut into pieces."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.report.bins import BINS_MAX, bins_of
from analytics.report.changes import previous
from analytics.report.course import evidence_in_words
from analytics.report.facts import Attention, Facts, to_json
from analytics.report.gather import ATTENTION_MAX, gather
from analytics.report.page import page
from analytics.report.sentences import headline
from analytics.statuses import Status
from tests.support.lag_world import (
    BLIND,
    END,
    NAMES,
    OBJECTIVE_S,
    START,
    TICKS,
    MemoryTables,
    as_table,
    pair_row,
    tables,
    tick,
)

MADE = END + timedelta(seconds=20)


@pytest.fixture(scope="module")
def world() -> Mapping[str, pa.Table]:
    return tables()


@pytest.fixture(scope="module")
def facts(world: Mapping[str, pa.Table]) -> Facts:
    return facts_of(world)


def facts_of(world: Mapping[str, pa.Table], **others: object) -> Facts:
    return gather(MemoryTables(world), start=START, end=END, made_at=MADE, **others)  # type: ignore[arg-type]


def of(facts: Facts, group: str) -> Attention:
    (found,) = (one for one in (*facts.attention, *facts.others) if one.pair.group == group)
    return found


def test_the_worst_pairs_come_first_and_one_held_back_is_among_them(facts: Facts) -> None:
    assert [(one.pair.group, one.pair.level) for one in facts.attention] == [
        ("audit", "page"),
        ("mailer", "page"),
        ("search-index", "ticket"),
        ("ledger", "ticket"),
    ]
    assert [one.pair.group for one in facts.others] == ["sensors"], "in time now, late before"
    assert facts.counts == {"STOPPED": 1, "STALLED": 1, "FALLING_BEHIND": 1, "OK": 3}
    assert facts.title == "tidemark"


def test_a_group_that_was_dead_when_it_went_out_of_sight_has_a_card(
    world: Mapping[str, pa.Table],
) -> None:
    # Five groups that had not read for 26 minutes were listed as "not known", without a card.
    def blinded(status: str | None, age_s: float | None) -> Mapping[str, pa.Table]:
        """Tables in which all is unknown at the end; of audit, this was known a moment before."""
        rows = world["pair_lag"].to_pylist()
        for row in rows:
            if row["tick"] > tick(TICKS - 30):
                row |= {"status": "UNKNOWN", "age_max_seconds": None, "lag_sum": None}
            elif row["group"] == "audit":
                row |= {"age_max_seconds": age_s, "status": status or "UNKNOWN"}
        return {**world, "pair_lag": as_table("pair_lag", rows)}

    def shown(found: Facts) -> set[str]:
        return {one.pair.group for one in found.attention if one.pair.level == "unknown"}

    late = {"search-index", "mailer"}  # by their last known status
    assert shown(facts_of(blinded("STOPPED", 400.0))) == {"audit"} | late
    assert shown(facts_of(blinded(None, 400.0))) == {"audit"} | late, "by its last known age"
    assert shown(facts_of(blinded(None, 1.0))) == late
    assert shown(facts_of(blinded("OK", 1.0))) == late
    assert shown(facts_of(blinded(None, None))) == late, "nothing was ever known of it"


def test_a_dead_group_out_of_sight_comes_before_those_that_only_inform(
    world: Mapping[str, pa.Table],
) -> None:
    # Two dozen groups that catch up took all cards, and it was not named anywhere.
    rows: list[dict[str, object]] = []
    for row in world["pair_lag"].to_pylist():
        if row["group"] == "audit":
            unseen = row["tick"] > tick(TICKS - 30)
            row |= {"status": "UNKNOWN" if unseen else "STOPPED", "age_max_seconds": None}
            rows += [
                row | {"pair_id": number, "group": f"g{number}", "status": "CATCHING_UP"}
                for number in range(ATTENTION_MAX)
            ]
        rows.append(row)
    found = facts_of({**world, "pair_lag": as_table("pair_lag", rows)})
    assert [one.pair.group for one in found.attention][:4] == [
        "mailer",
        "search-index",
        "ledger",
        "audit",
    ]
    assert "<b>audit</b>" in page(found).split("<figure")[0]


def test_every_dead_group_out_of_sight_is_named_and_counted(
    world: Mapping[str, pa.Table],
) -> None:
    # More than have a card: those without one were in no list of names, and the headline said
    # that no pair needs attention.
    count = ATTENTION_MAX + 10
    rows = [
        row
        | {
            "pair_id": number,
            "group": f"g{number:02}",
            "status": "UNKNOWN" if row["tick"] > tick(TICKS - 30) else "STOPPED",
        }
        for row in world["pair_lag"].to_pylist()
        if row["group"] == "audit"
        for number in range(count)
    ]
    found = facts_of({**world, "pair_lag": as_table("pair_lag", rows)})
    first_screen = page(found).split("<figure")[0]
    for number in range(count):
        assert f"<b>g{number:02}</b>" in first_screen
    assert headline(found) == (
        f"Nothing is known of the {count} pairs of group and topic, "
        f"{count} of them late when last seen"
    )


def test_a_pair_has_the_numbers_of_its_newest_tick(facts: Facts) -> None:
    last = pair_row("search-index", TICKS - 1)
    pair = of(facts, "search-index").pair
    assert pair.seen == last["tick"]
    assert (pair.age_s, pair.lag) == (last["age_max_seconds"], last["lag_sum"])
    assert pair.drain_p50_s == math.inf
    assert pair.objective_s == OBJECTIVE_S
    assert (pair.blamed, pair.blamed_share) == ("processing", 0.97)


def test_the_course_is_the_worst_of_each_bin_and_unknown_where_nothing_was_seen(
    facts: Facts,
) -> None:
    bins = facts.bins
    assert bins.count == BINS_MAX
    per_bin = round(bins.width_s / 15)
    course = of(facts, "audit").course
    for place in range(bins.count):
        seen = [
            pair_row("audit", number)
            for number in range(place * per_bin, (place + 1) * per_bin)
            if number not in BLIND
        ]
        ages = [row["age_max_seconds"] for row in seen]
        assert course.age_s[place] == (max(ages) if ages else None)
        mean = sum(row["produce_per_second"] for row in seen) / len(seen) if seen else None
        assert course.produce_per_s[place] == (pytest.approx(mean) if seen else None)
        if not seen:
            assert course.status[place] is None
            assert all(values[place] is None for values in course.stages_s.values())


def test_what_is_unknown_is_never_zero(facts: Facts) -> None:
    course = of(facts, "sensors").course
    unknown = [
        place
        for place in range(facts.bins.count)
        if all(
            number in BLIND or pair_row("sensors", number)["status"] == Status.UNKNOWN
            for number in (2 * place, 2 * place + 1)
        )
    ]
    assert len(unknown) > 40
    for place in unknown:
        assert course.status[place] in (None, Status.UNKNOWN)
        assert course.age_s[place] is None
        assert course.stages_s["processing"][place] is None
    for values in facts.by_status.values():
        assert None in values, "nothing is counted while nothing is evaluated"


def test_the_part_of_known_time_above_the_objective_is_exact(facts: Facts) -> None:
    rows = [pair_row("mailer", place) for place in range(TICKS) if place not in BLIND]
    over = sum(row["age_max_seconds"] > OBJECTIVE_S for row in rows)
    assert of(facts, "mailer").over_objective == pytest.approx(over / len(rows))


def test_all_pairs_together_are_as_many_at_every_bin(facts: Facts) -> None:
    for place in range(facts.bins.count):
        values = [each[place] for each in facts.by_status.values()]
        known = [each for each in values if each is not None]
        assert sum(known) == pytest.approx(len(NAMES) if known else 0)
        assert len(known) in (0, len(values))


def test_a_pair_that_a_tick_has_no_row_of_is_not_known_then(
    world: Mapping[str, pa.Table],
) -> None:
    rows = world["pair_lag"]
    hole = pc.and_(
        pc.equal(rows["group"], "billing"),
        pc.is_in(rows["tick"], pa.array([tick(100), tick(101)], rows.schema.field("tick").type)),
    )
    found = facts_of({**world, "pair_lag": rows.filter(pc.invert(hole))})
    place = 50  # two ticks of 15 s each
    assert found.by_status["UNKNOWN"][place] == 1
    assert found.by_status["OK"][place] == len(NAMES) - 1 - found.by_status["FALLING_BEHIND"][place]  # type: ignore[operator]


def test_queues_are_those_of_now_with_the_one_that_stands_out(facts: Facts) -> None:
    queues = of(facts, "mailer").queues
    assert [queue.queue for queue in queues] == list(range(8))
    assert [queue.status for queue in queues].count("STALLED") == 1
    assert max(queues, key=lambda queue: queue.lag or 0).queue == 5


def test_evidence_is_that_of_the_oldest_queue_with_the_pairs_status(facts: Facts) -> None:
    evidence = of(facts, "mailer").evidence
    assert "commit unmoved for: 14 min" in evidence
    assert "objective: 60 s" in evidence


def test_evidence_that_is_no_object_is_shown_as_it_is() -> None:
    assert evidence_in_words("rule 8") == ["rule 8"]
    assert evidence_in_words("[1]") == ["[1]"]
    assert evidence_in_words("") == []
    assert evidence_in_words('{"is_stuck": true, "x": null}') == ["is stuck: yes"]


def test_gaps_are_added_up_by_source_and_cause_the_newest_first(facts: Facts) -> None:
    assert [(gap.source, gap.reason, gap.count) for gap in facts.gaps] == [
        ("prometheus", "unreachable", 1),
        ("scrape", "timeout", 3),
    ]
    assert facts.gaps[0].rows_lost is None, "not known how many"
    assert facts.gaps[1].rows_lost == 360


def test_unknown_queues_are_counted_by_their_reason(facts: Facts) -> None:
    (found,) = facts.unknowns
    assert (found.reason, found.queues, found.pairs) == ("never_committed", 1, 1)


def test_forecasts_capacity_and_anomalies_are_the_newest_and_the_largest(facts: Facts) -> None:
    assert [each.kind for each in facts.forecasts] == ["disk", "produce"], "a limit comes first"
    assert facts.forecasts[0].limit_p50_s == 2.4e5
    assert len(facts.forecasts[0].at) == 73
    assert [each.group for each in facts.capacity] == ["search-index", "billing", "mailer"]
    assert facts.capacity[2].c_max_per_s is None
    assert [each.score for each in facts.anomalies] == [31.0, -14.2], "suppressed ones are not"


def test_a_part_of_the_time_that_was_not_evaluated_is_reported(facts: Facts) -> None:
    assert facts.known_share == pytest.approx(1 - len(BLIND) / TICKS)


def test_a_pair_without_rows_for_three_ticks_is_not_known_any_more(
    world: Mapping[str, pa.Table],
) -> None:
    rows = world["pair_lag"]
    silent = pc.and_(
        pc.equal(rows["group"], "billing"), pc.greater(rows["tick"], pa.scalar(tick(474)))
    )
    found = facts_of({**world, "pair_lag": rows.filter(pc.invert(silent))})
    (pair,) = (pair for pair in found.pairs if pair.group == "billing")
    assert (pair.status, pair.level, pair.age_s, pair.lag) == ("UNKNOWN", "unknown", None, None)


def test_tables_without_a_row_give_empty_facts() -> None:
    found = facts_of({})
    assert found.newest is None
    assert found.known_share is None
    assert found.counts == {}
    assert found.attention == []


def test_a_time_that_is_empty_is_refused(world: Mapping[str, pa.Table]) -> None:
    with pytest.raises(ValueError, match="empty"):
        gather(MemoryTables(world), start=END, end=END, made_at=MADE)


@settings(max_examples=8, deadline=None)
@given(piece_rows=st.integers(min_value=37, max_value=5000))
def test_facts_do_not_depend_on_how_tables_are_cut(piece_rows: int) -> None:
    world = tables()
    one = gather(MemoryTables(world, piece_rows), start=START, end=END, made_at=MADE)
    other = gather(MemoryTables(world, 10**6), start=START, end=END, made_at=MADE)
    assert to_json(one) == to_json(other)


@given(
    seconds=st.floats(min_value=0.5, max_value=4e7),
    period_s=st.none() | st.floats(min_value=0.05, max_value=900),
)
def test_bins_cover_their_time_and_are_not_too_many(seconds: float, period_s: float | None) -> None:
    bins = bins_of(START, START + timedelta(seconds=seconds), period_s)
    assert 1 <= bins.count <= BINS_MAX + 1
    assert bins.count * bins.width_s >= seconds * (1 - 1e-6)
    if period_s is not None and seconds / 1e6 < period_s:
        whole = bins.width_s / period_s
        assert whole == pytest.approx(round(whole), abs=1e-6), "some whole periods"


# -- the report before ----------------------------------------------------------------------------


def test_changes_are_listed_by_kind(world: Mapping[str, pa.Table]) -> None:
    half = START + (END - START) * 0.55
    before = gather(MemoryTables(world), start=START, end=half, made_at=half)
    found = facts_of(world, before=previous(to_json(before)))
    assert found.previous_at == half
    assert [(each.kind, each.group, each.before, each.now) for each in found.changes] == [
        ("new", "mailer", "OK", "STALLED"),
        ("new", "ledger", "OK", "HELD_BACK"),
        ("over", "sensors", "UNKNOWN", "OK"),
    ]


def test_a_pair_that_is_no_longer_there_is_a_change(world: Mapping[str, pa.Table]) -> None:
    before = facts_of(world)
    rows = world["pair_lag"]
    fewer = {**world, "pair_lag": rows.filter(pc.not_equal(rows["group"], "audit"))}
    found = facts_of(fewer, before=previous(to_json(before)))
    assert [(each.kind, each.group, each.now) for each in found.changes] == [
        ("gone", "audit", None)
    ]


def test_a_pair_that_became_unknown_is_no_new_trouble(world: Mapping[str, pa.Table]) -> None:
    before = facts_of(world)
    rows = world["pair_lag"]
    place = rows.column_names.index("status")
    statuses = [
        "UNKNOWN" if group == "billing" else status
        for group, status in zip(rows["group"].to_pylist(), rows["status"].to_pylist(), strict=True)
    ]
    blind = rows.set_column(place, rows.schema.field(place), pa.array(statuses, pa.string()))
    found = facts_of({**world, "pair_lag": blind}, before=previous(to_json(before)))
    assert [(each.kind, each.group, each.now) for each in found.changes] == [
        ("other", "billing", "UNKNOWN")
    ]


def test_the_same_tables_again_have_no_change(world: Mapping[str, pa.Table]) -> None:
    before = facts_of(world)
    assert facts_of(world, before=previous(to_json(before))).changes == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 0}', '{"version": 1}', "null"])
def test_a_report_that_cannot_be_compared_with_is_none(text: str) -> None:
    assert previous(text) is None


def test_the_json_has_no_number_that_json_has_not(facts: Facts) -> None:
    found = json.loads(to_json(facts), parse_constant=lambda name: pytest.fail(name))
    assert found["version"] == 1
    assert found["attention"][0]["pair"]["drain_p50_s"] == "inf"
    assert found["gaps"][0]["rows_lost"] is None
