"""Index files that Apache RocketMQ wrote: headers, chains, and a copy of ours equal to the byte."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import golden_names, manifest, unpack
from tests.support.index_rows import packed
from tests.support.twins import twins_of
from tidemark.formats import index_chains, index_file
from tidemark.formats.filenames import parse_index_name
from tidemark.formats.index_file import Geometry, Header, IndexFile

COPIED_SIZE_MAX = 1 << 20
"""Files of the default geometry have 420 MB, nearly all of it holes."""
TWINS = ("put_rows", "look_up", "held_rows", "chains_are_sound")


@pytest.fixture(autouse=True, params=twins_of("index", index_chains.put_rows))
def twin(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here runs with both twins of ``index_chains``."""
    module = importlib.import_module(request.param.__module__)
    with pytest.MonkeyPatch.context() as patch:
        for name in TWINS:
            patch.setattr(index_file, name, getattr(module, name))
        yield


def index_files(name: str, store: Path) -> list[tuple[dict[str, Any], memoryview, Geometry]]:
    """(the manifest's header, bytes, geometry) of each index file that is in the archive.

    The files of the crashed stores are dropped and rebuilt when the reference opens them, and have
    no name in the manifest then. Mapped privately: stores to the bytes do not reach the file.
    """
    config = manifest(name)["config"]
    geometry = Geometry(config["maxHashSlotNum"], config["maxIndexNum"])
    listed = {entry["name"]: entry for entry in manifest(name)["index"] if entry["name"]}
    return [
        (listed[path.name], mapped(path), geometry)
        for path in sorted((store / "index").iterdir())
        if path.name in listed
    ]


def mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def header_of(entry: dict[str, Any]) -> Header:
    return Header(
        begin_timestamp_ms=entry["beginTimestamp"],
        end_timestamp_ms=entry["endTimestamp"],
        begin_offset=entry["beginPhyOffset"],
        end_offset=entry["endPhyOffset"],
        slots_used=entry["hashSlotCount"],
        next_entry=entry["indexCount"],
    )


@pytest.mark.parametrize("name", golden_names())
def test_headers_are_read_as_the_reference_reads_them(name: str, tmp_path: Path) -> None:
    for entry, view, geometry in index_files(name, unpack(name, tmp_path)):
        index = IndexFile(view, geometry)
        assert parse_index_name(entry["name"]) is not None
        assert index.header == header_of(entry)
        assert index.problem() is None


@pytest.mark.parametrize("name", golden_names())
def test_our_puts_make_the_reference_s_bytes(name: str, tmp_path: Path) -> None:
    """Put each entry again, with any time in its second: all but the end time must be equal."""
    predecessor: Header | None = None
    for _, view, geometry in index_files(name, unpack(name, tmp_path)):
        if geometry.size > COPIED_SIZE_MAX:
            continue
        theirs = IndexFile(view, geometry)
        begin_ms = theirs.header.begin_timestamp_ms
        for one_by_one in (True, False):
            data = bytearray(geometry.size)
            ours = IndexFile(memoryview(data), geometry)
            ours.start_after(predecessor)
            preset_ms = ours.header.begin_timestamp_ms
            rows = [
                (each.key_hash, each.physical_offset, begin_ms + each.seconds * 1000)
                for each in (theirs.entry(n) for n in range(1, theirs.entry_count + 1))
            ]
            first_gap = (begin_ms - preset_ms) // 1000 if preset_ms else 0
            if theirs.entry(1).seconds != first_gap:
                # The predecessor was removed by the store's own cleaning: begin is not known.
                assert predecessor is None
                break
            rows[0] = (*rows[0][:2], begin_ms)
            for batch in [[row] for row in rows] if one_by_one else [rows]:
                assert ours.put_rows(packed(batch)) == len(batch)
            assert data[:8] == view[:8]
            assert data[16:] == view[16:]
        predecessor = theirs.header


@pytest.mark.parametrize("name", golden_names())
def test_every_entry_is_found_and_a_chain_runs_from_new_to_old(name: str, tmp_path: Path) -> None:
    for _, view, geometry in index_files(name, unpack(name, tmp_path)):
        index = IndexFile(view, geometry)
        entries = [index.entry(n) for n in range(1, index.entry_count + 1)]
        rows = packed((each.key_hash, each.physical_offset, 0) for each in entries)
        assert index.held_rows(rows, 0, len(entries)) == len(entries)
        assert index.is_sound()
        for each in entries:
            hits = index.lookup(each.key_hash, begin_ms=0, end_ms=2**62, hits_max=10**6)
            assert hits == [
                other.physical_offset
                for other in reversed(entries)
                if other.key_hash == each.key_hash
            ]


@pytest.mark.parametrize("name", golden_names())
def test_a_healthy_file_is_not_changed_by_healing(name: str, tmp_path: Path) -> None:
    for _, view, geometry in index_files(name, unpack(name, tmp_path)):
        index = IndexFile(view, geometry)
        before = bytes(view[:COPIED_SIZE_MAX])
        assert index.heal() == 0
        assert index.cut(index.header.end_offset + 1, lambda _: None) == 0
        assert view[:COPIED_SIZE_MAX] == before
