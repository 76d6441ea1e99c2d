"""`tidemark store` on damaged copies of real stores: every damage is reported with its place."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidemark
from shared.files.os_disk import OsDisk
from shared.files.store_config import (
    DELAY_LEVELS,
    StoreConfig,
    config_of,
    describe,
    described_delay_levels,
)
from shared.files.store_dir import StoreDir
from tests.support import golden
from tidemark.cli.main import cli
from tidemark.cli.store_rebuild import exit_reason
from tidemark.formats.hashing import index_hash
from tidemark.formats.index_file import ROW, Geometry, IndexFile
from tidemark.formats.queue_unit import UNIT
from tidemark.testing import LocalStore

pytest_plugins = ["tidemark.testing.fixtures"]


def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)], input=stdin, catch_exceptions=False)


def verified(store: Path) -> tuple[int, dict[str, Any]]:
    done = run("store", "verify", "--store", store, "-o", "json")
    return done.exit_code, json.loads(done.stdout)


def dumped(store: Path) -> list[dict[str, Any]]:
    done = run("store", "dump", "--store", store)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("cut", tmp_path_factory.mktemp("golden"))


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def poke(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def log_place(store: Path, physical_offset: int) -> tuple[Path, int]:
    for start, path in reversed(golden.commit_log_files(store)):
        if start <= physical_offset:
            return path, physical_offset - start
    raise AssertionError(physical_offset)


@pytest.mark.parametrize("name", golden.golden_names())
def test_a_store_that_rocketmq_wrote_is_sound(name: str, tmp_path: Path) -> None:
    store = golden.unpack(name, tmp_path)
    status, report = verified(store)
    assert report["damages"] == []
    assert status == 0
    assert report["records"] == golden.manifest(name)["commitLog"]["records"]
    assert report["log_end"] == golden.manifest(name)["commitLog"]["maxOffset"]
    assert bool(report["remarks"]) == ("damage" in golden.manifest(name))


def test_verify_changes_nothing(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    verified(store)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_flipped_bit_in_a_record_is_named_and_the_rest_is_still_checked(store: Path) -> None:
    records = dumped(store)
    victim = next(record for record in records[100:] if record["size"] > 300)
    path, at = log_place(store, victim["physical_offset"])
    poke(path, at + 90, bytes([path.read_bytes()[at + 90] ^ 4]))
    status, report = verified(store)
    assert status == 1
    (damage,) = report["damages"]
    assert damage["where"] == f"commitlog/{path.name}"
    assert damage["byte"] == at
    assert f"physical offsets {victim['physical_offset']} to " in damage["problem"]
    assert report["records"] == len(records) - 1

    done = run("store", "dump", "--store", store)
    assert done.exit_code == 1
    assert "[corrupt-record]" in done.stderr
    assert str(victim["physical_offset"]) in done.stderr
    assert len(done.stdout.splitlines()) == records.index(victim)


def test_a_missing_log_file_is_named(store: Path) -> None:
    files = golden.commit_log_files(store)
    files[1][1].unlink()
    status, report = verified(store)
    assert status == 1
    assert any("is missing" in damage["problem"] for damage in report["damages"])
    assert str(files[1][0]) in json.dumps(report["damages"])


def test_a_changed_queue_unit_is_named_by_byte(store: Path) -> None:
    record = dumped(store)[200]
    directory = store / "consumequeue" / record["topic"] / str(record["queue"])
    position = record["queue_offset"] * UNIT.size
    path = next(
        path for path in sorted(directory.iterdir(), reverse=True) if int(path.name) <= position
    )
    at = position - int(path.name)
    poke(path, at + 12, b"\x11" * 8)
    status, report = verified(store)
    assert status == 1
    (damage,) = report["damages"]
    assert damage["where"] == str(path.relative_to(store))
    assert damage["byte"] == at


def test_a_missing_queue_file_is_named(store: Path) -> None:
    record = dumped(store)[-1]
    directory = store / "consumequeue" / record["topic"] / str(record["queue"])
    shutil.rmtree(directory)
    status, report = verified(store)
    assert status == 1
    assert {damage["where"] for damage in report["damages"]} <= {
        str(directory.relative_to(store) / path.name)
        for path in [Path(f"{n:020}") for n in range(0, 10**6, 20)]
    }
    assert any("there is no unit" in damage["problem"] for damage in report["damages"])


@pytest.mark.parametrize(
    ("at_entry", "data", "says"),
    [
        (4, (12345).to_bytes(8, "big"), "where no record starts"),
        (0, (7).to_bytes(4, "big"), "has no key with hash 7"),
        (16, (499).to_bytes(4, "big"), "follows entry"),
    ],
)
def test_a_changed_index_entry_is_named_by_byte(
    store: Path, at_entry: int, data: bytes, says: str
) -> None:
    config = golden.manifest("cut")["config"]
    path = sorted((store / "index").iterdir())[-2]
    entry = 40 + 4 * config["maxHashSlotNum"] + 20 * 100
    if at_entry == 4:  # a place inside the log at which no record starts
        data = (dumped(store)[100]["physical_offset"] + 8).to_bytes(8, "big")
    poke(path, entry + at_entry, data)
    status, report = verified(store)
    assert status == 1
    named = [damage for damage in report["damages"] if damage["byte"] == entry]
    assert any(says in damage["problem"] for damage in named)
    assert {damage["where"] for damage in report["damages"]} == {f"index/{path.name}"}


def test_tags_that_a_later_rocketmq_indexes_are_keys_of_the_record(store: Path) -> None:
    """From 5.4 on it puts one more entry for a record: "T#" and its tags."""
    config = golden.manifest("cut")["config"]
    last = dumped(store)[-1]
    path = max((store / "index").iterdir())
    for key, damages in (("T#" + last["properties"]["TAGS"], 0), ("T#other", 1)):
        data = bytearray(path.read_bytes())
        file = IndexFile(
            memoryview(data), Geometry(config["maxHashSlotNum"], config["maxIndexNum"])
        )
        key_hash = index_hash(last["topic"], key)
        row = last["physical_offset"], file.header.end_timestamp_ms, key_hash
        assert file.put_rows(ROW.pack(*row)) == 1
        file.close()
        path.write_bytes(data)
        assert len(verified(store)[1]["damages"]) == damages


def test_a_cleared_index_slot_is_named_by_byte(store: Path) -> None:
    config = golden.manifest("cut")["config"]
    path = sorted((store / "index").iterdir())[-2]
    data = path.read_bytes()
    slot = next(
        at for at in range(40, 40 + 4 * config["maxHashSlotNum"], 4) if any(data[at : at + 4])
    )
    poke(path, slot, bytes(4))
    done = run("store", "verify", "--store", store, "-o", "json", "--index-slots",
               str(config["maxHashSlotNum"]))  # fmt: skip
    assert done.exit_code == 1
    damages = json.loads(done.stdout)["damages"]
    assert [damage["byte"] for damage in damages] == [slot]


def test_a_short_checkpoint_and_json_that_is_none_are_named(tmp_path: Path) -> None:
    store = golden.unpack("defaults", tmp_path)
    (store / "config" / "topics.json").write_text("{")
    (store / "checkpoint").write_bytes(b"short")
    status, report = verified(store)
    assert status == 1
    assert {damage["where"] for damage in report["damages"]} == {
        "checkpoint",
        "config/topics.json",
    }


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    for command in ("dump", "verify", "rebuild", "repair"):
        done = run("store", command, "--store", tmp_path)
        assert done.exit_code == 1
        assert "[store-missing]" in done.stderr
        assert list(tmp_path.iterdir()) == []
    assert run("store", "dump", "--store", tmp_path / "nothing").exit_code == 2


def test_repair_explains_the_damage_and_what_a_cut_would_lose(store: Path) -> None:
    records = dumped(store)
    victim = records[400]
    path, at = log_place(store, victim["physical_offset"])
    poke(path, at + 4, b"\x00\x00\x00\x00")
    done = run("store", "repair", "--store", store)
    assert done.exit_code == 0
    assert f"damage at physical offset {victim['physical_offset']}" in done.stdout
    assert f"with {len(records) - 401} sound messages" in done.stdout
    following = records[401:]
    topic, queue = following[0]["topic"], following[0]["queue"]
    count = sum((record["topic"], record["queue"]) == (topic, queue) for record in following)
    assert f"topic {topic} queue {queue}: {count} messages" in done.stdout
    assert path.read_bytes()[at + 4 : at + 8] == bytes(4)


def test_repair_of_a_sound_log_has_nothing_to_do(store: Path) -> None:
    done = run("store", "repair", "--store", store)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to repair" in done.stderr


def test_a_cut_is_refused_where_no_record_starts_or_behind_the_damage(store: Path) -> None:
    records = dumped(store)
    inside = records[300]["physical_offset"] + 1
    done = run("store", "repair", "--store", store, "--cut-at", str(inside), "--yes")
    assert done.exit_code == 1
    assert "no record and no damage starts" in done.stderr
    path, at = log_place(store, records[100]["physical_offset"])
    poke(path, at + 4, b"\x00\x00\x00\x00")
    behind = str(records[200]["physical_offset"])
    done = run("store", "repair", "--store", store, "--cut-at", behind, "--yes")
    assert done.exit_code == 1
    assert "would leave the damage" in done.stderr
    assert dumped(store) == records[:100]


def test_a_cut_needs_a_yes_and_a_dry_run_cuts_nothing(store: Path) -> None:
    records = dumped(store)
    at = str(records[500]["physical_offset"])
    assert run("store", "repair", "--store", store, "--cut-at", at).exit_code == 2
    done = run("store", "repair", "--store", store, "--cut-at", at, "--dry-run")
    assert done.exit_code == 0
    assert f"with {len(records) - 500} sound messages" in done.stdout
    assert dumped(store) == records


def test_a_rebuild_that_cannot_go_on_says_why_in_a_sentence() -> None:
    # It was reported as a bug ([internal]), with log lines for a mistake of the store's owner.
    stderr = "x\ntidemark: [stray-file] lines/0 is a file where a directory belongs. Move it away."
    assert exit_reason(stderr, 1).startswith("[stray-file] lines/0 is a file")
    assert exit_reason("a\nb\nc\nd", 137) == "reput ended with status 137: b / c / d"


def test_a_dry_rebuild_says_what_it_would_do(store: Path) -> None:
    before = sorted(path for path in store.rglob("*"))
    done = run("store", "rebuild", "--store", store, "--dry-run")
    assert done.exit_code == 0
    assert "would remove and rebuild" in done.stderr
    assert sorted(path for path in store.rglob("*")) == before
    only = run("store", "rebuild", "--store", store, "--index", "--dry-run")
    assert "0 queues and" in only.stderr
    assert run("store", "rebuild", "--store", store, "--index", "--topic", "x").exit_code == 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_record_damaged_in_the_midst_of_the_log_is_no_torn_tail(store: Path, clean: bool) -> None:
    if not clean:
        (store / "abort").write_text("1")
    records = dumped(store)
    path, at = log_place(store, records[50]["physical_offset"])
    poke(path, at + 4, b"\x00\x00\x00\x00")
    done = run("store", "dump", "--store", store)
    assert done.exit_code == 1
    assert "[corrupt-record]" in done.stderr


def test_units_of_other_delay_levels_are_compared_with_those_that_the_store_records(
    store: Path,
) -> None:
    """The due time of a delayed message is in its unit alone. Units of other levels than the usual
    ones were reported as damaged, and a rebuild made them due at other times."""
    level = store / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / f"{0:020}"
    units = list(UNIT.iter_unpack(level.read_bytes()))
    last = max(range(len(units)), key=lambda at: units[at][0])
    physical_offset, size, due_ms = units[last]
    poke(level, last * UNIT.size, UNIT.pack(physical_offset, size, due_ms + 50_000))
    status, report = verified(store)
    assert (status, report["damages"]) == (0, []), "RocketMQ records no levels"
    assert any(
        "1 delayed messages have due times that differ" in each for each in report["remarks"]
    )
    sizes = golden.manifest("cut")["config"]
    config = StoreConfig(
        commit_log_file_size=sizes["mappedFileSizeCommitLog"],
        consume_queue_file_size=sizes["mappedFileSizeConsumeQueue"],
        index_slots=sizes["maxHashSlotNum"],
        index_entries=sizes["maxIndexNum"],
    )
    described = store / "tidemark.json"

    def recorded(*settings: str) -> dict[str, Any]:
        described.write_bytes(describe(config))
        for levels in settings:
            StoreDir(OsDisk(), store, replace(config, delay_levels=levels)).describe_delay_levels()
        return verified(store)[1]

    # The one unit is none of its record's; level 3 was a minute once: it is.
    assert recorded(DELAY_LEVELS)["units"] == report["units"] - 1
    assert recorded("1s 5s 60s", DELAY_LEVELS)["units"] == report["units"]
    assert described_delay_levels(OsDisk(), described) == ("1s 5s 60s", DELAY_LEVELS)
    assert config_of(OsDisk(), store, StoreConfig()).delay_levels == DELAY_LEVELS


def test_a_queue_of_a_recreated_topic_begins_at_its_recorded_offset(
    tidemark_store: LocalStore,
) -> None:
    """The numbers below are the deleted topic's. The dump showed minimum 0 and their units."""
    with tidemark.connect_sync(tidemark_store.url) as mq:
        mq.create_topic("orders", queues=1)
        mq.send_many("orders", [b"%d" % n for n in range(20)])
        mq.delete_topic("orders")
        mq.create_topic("orders", queues=1)
        for count in range(2):
            done = run("store", "dump", "--queues", "--store", tidemark_store.store_dir)
            (shown,) = (
                queue
                for queue in map(json.loads, done.stdout.splitlines())
                if queue["topic"] == "orders"
            )
            (served,) = mq.topic("orders").ranges
            assert (shown["min_offset"], shown["max_offset"]) == (20, 20 + count)
            assert (served.min_offset, served.max_offset) == (20, 20 + count)
            assert [unit["queue_offset"] for unit in shown["units"]] == list(range(20, 20 + count))
            mq.send("orders", b"more")


def test_damage_at_the_beginning_offers_a_log_that_begins_behind_it(tmp_path: Path) -> None:
    """The only advice was a cut at 0, which loses the topics and every sound message."""
    size = 32 << 10
    settings = {"store.commit_log_file_size": size}
    with LocalStore(tmp_path, settings=settings) as filled:
        with tidemark.connect_sync(filled.url) as mq:
            mq.create_topic("orders", queues=1)
            for n in range(100):
                mq.send("orders", b"%04d" % n + bytes(700))
        store = filled.store_dir
        filled.stop()
        records = dumped(store)
        path, at = log_place(store, 0)
        poke(path, at + 40, b"\xff\xff")
        done = run("store", "repair", "--store", store, "--dry-run", "-o", "json")
        (loss,) = json.loads(done.stdout)["losses"]
        assert (loss["cut_at"], loss["begin_at"]) == (0, size)
        # The damaged record is the one before it that cannot be counted.
        behind = [record for record in records if record["physical_offset"] >= size]
        assert loss["records_before"] == len(records) - 1 - len(behind)
        shown = run("store", "repair", "--store", store).stdout
        assert "topics, groups and offsets are then as they were at 0" in shown
        assert f"or --begin-at {size} --yes" in shown

        assert (
            run("store", "repair", "--store", store, "--begin-at", str(size), "--yes").exit_code
            == 0
        )
        filled.start()
        with tidemark.connect_sync(filled.url) as mq:
            (served,) = mq.topic("orders").ranges
            kept = [record["queue_offset"] for record in behind if record["topic"] == "orders"]
            assert (served.min_offset, served.max_offset) == (kept[0], 100)
            assert mq.send("orders", b"more").queue_offset == 100


@pytest.mark.parametrize("shortened", [False, True])
@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "log-start"])
def test_all_files_are_missing(tmp_path: Path, lost: str, *, shortened: bool) -> None:
    """No remedy healed it: a cut at 0 removed the queues and was refused after that."""
    size = 32 << 10
    with LocalStore(tmp_path, settings={"store.commit_log_file_size": size}) as filled:
        with tidemark.connect_sync(filled.url) as mq:
            mq.create_topic("orders", queues=1)
            for n in range(60):
                mq.send("orders", b"%04d" % n + bytes(700))
        store = filled.store_dir
        filled.stop()
        if shortened:
            done = run("store", "repair", "--store", store, "--begin-at", str(size), "--yes")
            assert done.exit_code == 0
        end = verified(store)[1]["log_end"]
        for path in (store / "commitlog").iterdir():
            path.unlink()
        if lost != "nothing":
            (store / lost).unlink()
        verdict = verified(store)[1]["damages"]
        assert any("has no file: files are missing" in damage["problem"] for damage in verdict)

        derived = sorted(store.rglob("*"))
        done = run("store", "repair", "--store", store, "--cut-at", "0", "--yes")
        assert done.exit_code == 1
        named = re.findall(r"--begin-at (\d+) --yes", done.stderr)
        assert sorted(store.rglob("*")) == derived
        shown = run("store", "repair", "--store", store).stdout
        (remedy,) = re.findall(r"--begin-at (\d+) --yes", shown)
        assert named == [remedy]
        assert end <= int(remedy) < end + size
        done = run("store", "repair", "--store", store, "--begin-at", remedy, "--yes")
        assert done.exit_code == 0
        assert verified(store)[1]["damages"] == []
        for _ in range(2):
            filled.start()
            with tidemark.connect_sync(filled.url) as mq:
                sent = mq.send("orders", b"more").queue_offset
            filled.stop()
        assert sent == 61


def test_a_file_without_a_snapshot_is_no_beginning(store: Path) -> None:
    """Topics would be lost with the files before it, as with a cut at 0."""
    records = dumped(store)
    path, at = log_place(store, records[3]["physical_offset"])
    poke(path, at + 4, b"\x00\x00\x00\x00")
    (loss,) = json.loads(run("store", "repair", "--store", store, "-o", "json").stdout)["losses"]
    assert (loss["begin_at"], loss["records_before"]) == (None, None)
    assert "--begin-at" not in run("store", "repair", "--store", store).stdout
