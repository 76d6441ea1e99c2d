"""Where the processes of a node meet, also if the store refuses writes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from shared.runtime.run_dir import usable_run_dir
from tidemark.errors import ReadOnlyDisk


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that refuses writes (root may write anywhere but on a read-only mount)."""
    store = tmp_path / "store"
    (tmp_path / "temporary").mkdir()
    store.mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != store and real(path, mode))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return store


def test_a_directory_that_can_be_made_is_used_and_not_made_yet(tmp_path: Path) -> None:
    wanted = tmp_path / "store" / "run"
    assert usable_run_dir(wanted) == wanted
    assert not wanted.exists()


def test_all_processes_of_a_store_meet_in_one_directory_that_only_their_user_may_enter(
    store: Path,
) -> None:
    found = usable_run_dir(store / "run")
    assert found == usable_run_dir(store / "run")
    assert found != usable_run_dir(store / "other")
    assert found.parent == Path(tempfile.gettempdir())
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_store_of_the_same_path_on_another_file_system_has_another_one(
    store: Path, tmp_path: Path
) -> None:
    found = usable_run_dir(store / "run")
    store.rename(tmp_path / "elsewhere")
    store.mkdir()
    assert usable_run_dir(store / "run") != found


@pytest.mark.parametrize("kind", ["link", "file", "other user"])
def test_a_file_that_another_user_put_in_its_place_is_not_trusted(
    store: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = usable_run_dir(store / "run")
    if kind == "other user":
        # The name has the user's id in it: a directory of another user, under the name of ours.
        owner = found.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        found.rename(found.parent / found.name.replace(f"-{owner}-", f"-{owner + 1}-", 1))
    else:
        found.rmdir()
        if kind == "link":
            found.symlink_to(tmp_path)
        else:
            found.touch()
    with pytest.raises(ReadOnlyDisk, match=r"\[read-only-disk\].*Set run_dir") as refused:
        usable_run_dir(store / "run")
    assert refused.value.facts["path"] == store / "run"
