"""The support bundle: bounded, with a list of what is missing, and not delayed by a hung
collector."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from pathlib import Path

import pytest

from tidemark.cli.support import bundle as bundles
from tidemark.cli.support import of_machine, of_store
from tidemark.cli.support.bundle import Bundle
from tidemark.formats.checkpoint import SIZE, SLOT_SIZE, Slot


def unpacked(bundle: Bundle, secrets: tuple[bytes, ...] = ()) -> dict[str, bytes]:
    bundle.close(secrets, {"made_at": "now"})
    with tarfile.open(fileobj=io.BytesIO(bundle.archive("d", 1.0))) as archive:
        found = {}
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            assert entry.mode == 0o600
            found[entry.name.removeprefix("d/")] = file.read()
        return found


def left_out(files: dict[str, bytes]) -> dict[str, str]:
    return {each["what"]: each["why"] for each in json.loads(files["manifest.json"])["left_out"]}


def test_the_manifest_says_what_is_in_it_and_what_never_is() -> None:
    bundle = Bundle()
    bundle.add_text("a/b.txt", "hello")
    files = unpacked(bundle)
    assert json.loads(files["manifest.json"])["files"] == {"a/b.txt": 5}
    assert {"message bodies", "secrets"} <= left_out(files).keys()


def test_a_file_and_the_whole_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "FILE_SIZE_MAX", 10)
    monkeypatch.setattr(bundles, "SIZE_MAX", 15)
    bundle = Bundle()
    bundle.add_text("long", "one\ntwo\nthree\n")
    bundle.add_text("more", "12345678")
    files = unpacked(bundle)
    assert files["long"] == b"one\ntwo\n", "cut behind a whole line"
    assert "more" not in files
    assert "the rest of long" in left_out(files)
    assert "exceed" in left_out(files)["more"]


def test_failed_and_hanging_collectors_are_noted_and_the_rest_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundles, "COLLECT_S", 0.2)
    bundle, hang = Bundle(), threading.Event()

    def hangs() -> None:
        hang.wait()
        bundle.add_text("late", "planted")

    def fails() -> None:
        raise PermissionError(13, "Permission denied")

    bundle.collect(
        {"late": hangs, "refused": fails, "well": lambda: bundle.add_text("well", "here")}
    )
    files = unpacked(bundle)
    hang.set()
    assert files["well"] == b"here"
    assert "late" not in files
    assert "longer than" in left_out(files)["late"]
    assert "Permission denied" in left_out(files)["refused"]


def test_a_defect_of_a_collector_is_not_swallowed() -> None:
    def broken() -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        Bundle().collect({"broken": broken})


def test_a_secret_found_in_the_bundle_is_removed_and_reported() -> None:
    secret = b"0123456789abcdef-planted"
    bundle = Bundle()
    bundle.add("some/file", b"x=" + secret + b" and " + secret.hex().encode())
    bundle.leave_out(secret.decode(), "in a name")
    files = unpacked(bundle, (secret,))
    assert all(secret not in data for data in files.values())
    assert all(secret.hex().encode() not in data for data in files.values())
    assert left_out(files)["a secret in some/file"] == "found 2 times"


def test_the_page_of_positions_is_shown_by_names(tmp_path: Path) -> None:
    page = bytearray(SIZE)
    page[Slot.CONFIRM * SLOT_SIZE : (Slot.CONFIRM + 1) * SLOT_SIZE] = (4711).to_bytes(8, "little")
    (tmp_path / "checkpoint").write_bytes(page)
    bundle = Bundle()
    of_store.checkpoint(bundle, tmp_path)
    found = json.loads(unpacked(bundle)["store/checkpoint.json"])
    assert found["slots"]["confirm"] == 4711
    assert set(found["slots"]) == {slot.name.lower() for slot in Slot}


def test_a_damaged_store_is_described(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"short")
    (tmp_path / "epochFileCheckpoint").write_bytes(b"\xff\xfe rubbish")
    (tmp_path / "ha").mkdir()
    (tmp_path / "ha/identity").mkdir()
    (tmp_path / "commitlog").symlink_to(tmp_path / "nowhere")
    bundle = Bundle()
    bundle.collect(
        {
            "checkpoint": lambda: of_store.checkpoint(bundle, tmp_path),
            "epochs": lambda: of_store.epoch_table(bundle, tmp_path),
            "small": lambda: of_store.small_files(bundle, tmp_path),
            "listing": lambda: of_store.listing(bundle, tmp_path),
        }
    )
    files = unpacked(bundle)
    missing = left_out(files)
    assert "5 bytes, not 4096" in missing["store/checkpoint.json"]
    assert "unreadable" in missing["store/epochs.json"]
    assert b"rubbish" in files["store/epochs.txt"]
    assert "not a regular file" in missing["small"]
    listed = [json.loads(each) for each in files["store/files.jsonl"].splitlines()]
    assert {each["path"]: each["kind"] for each in listed}["commitlog"] == "l"


def test_a_listing_ends_at_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_store, "FILES_MAX", 3)
    for number in range(9):
        (tmp_path / str(number)).touch()
    bundle = Bundle()
    of_store.listing(bundle, tmp_path)
    files = unpacked(bundle)
    assert len(files["store/files.jsonl"].splitlines()) == 3
    assert "more than 3 files" in left_out(files)["store/files.jsonl"]


def test_only_the_end_of_a_long_log_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_machine, "LINES_MAX", 3)
    path = tmp_path / "broker.log"
    path.write_text(
        "".join(json.dumps({"event": "e", "n": number}) + "\n" for number in range(9))
        + "not ours: planted\n"
    )
    bundle = Bundle()
    of_machine.log(bundle, path, "logs/broker.log")
    files = unpacked(bundle)
    kept = [json.loads(each)["n"] for each in files["logs/broker.log"].splitlines()]
    assert kept == [6, 7, 8]
    assert {"6 older lines of logs/broker.log", "1 lines of logs/broker.log"} <= (
        left_out(files).keys()
    )
    assert b"planted" not in b"".join(files.values())
