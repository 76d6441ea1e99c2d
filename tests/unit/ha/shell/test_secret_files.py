"""The files of a node's secrets: read together, replaced without a moment that lacks one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from services.ha.shell.secret_files import SecretFiles
from shared.cluster.group_secret import SECRET_SIZE_MAX, RotationStep, Secrets, after
from tidemark.errors import BadConfig

OLD, NEW = b"the old secret 16", b"the new secret 16"
BEFORE = Secrets(OLD, (OLD,))


class PowerCut(Exception):
    """The process ends here."""


@pytest.fixture
def files(tmp_path: Path) -> SecretFiles:
    found = SecretFiles(tmp_path / "secret")
    found.path.write_bytes(OLD + b"\n")
    found.path.chmod(0o600)
    return found


def test_a_rotation_leaves_one_private_file_with_the_new_secret(files: SecretFiles) -> None:
    for step, names in zip(RotationStep, (2, 2, 1), strict=True):
        present = files.read()
        files.write(present, after(step, NEW, present))
        assert files.read() == after(step, NEW, present)
        found = sorted(files.path.parent.iterdir())
        assert len(found) == names, found
        assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert files.path.read_bytes() == NEW


@pytest.mark.parametrize("survivors", range(4))
@pytest.mark.parametrize("step", RotationStep)
def test_a_crash_at_any_write_leaves_every_secret_accepted_and_the_step_repeatable(
    files: SecretFiles, step: RotationStep, survivors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two files are replaced. With only these: 1. the new secret replaces the proved one. 2. A
    # crash. 3. The next start accepts the new one twice, and refuses the nodes that prove the old.
    for earlier in list(RotationStep)[: list(RotationStep).index(step)]:
        files.write(files.read(), after(earlier, NEW, files.read()))
    present = files.read()
    wanted = after(step, NEW, present)
    rename, unlink = Path.rename, Path.unlink
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls > survivors:
            raise PowerCut

    def cut_rename(self: Path, target: Path) -> Path:
        count()
        return rename(self, target)

    def cut_unlink(self: Path, missing_ok: bool = False) -> None:
        if not self.name.endswith(".tmp"):
            count()
        unlink(self, missing_ok)

    with monkeypatch.context() as patched, contextlib.suppress(PowerCut):
        patched.setattr(Path, "rename", cut_rename)
        patched.setattr(Path, "unlink", cut_unlink)
        files.write(present, wanted)
    found = files.read()
    assert found.proved in (present.proved, wanted.proved)
    assert set(found.accepted) >= set(present.accepted) & set(wanted.accepted)
    files.write(found, after(step, NEW, found))
    assert files.read().proved == wanted.proved
    assert set(files.read().accepted) == set(wanted.accepted)


def test_every_change_of_a_file_shows(files: SecretFiles) -> None:
    first = files.stamps()
    assert first == files.stamps()
    files.also.write_bytes(NEW)
    second = files.stamps()
    assert second != first
    files.write(files.read(), Secrets(NEW, (NEW, OLD)))
    assert files.stamps() != second


@pytest.mark.parametrize("size", [0, 15, SECRET_SIZE_MAX + 1])
def test_a_second_secret_has_the_limits_of_the_first(files: SecretFiles, size: int) -> None:
    files.also.write_bytes(b"x" * size)
    with pytest.raises(BadConfig, match=r"secret\.also"):
        files.read()


def test_a_mounted_or_linked_secret_is_not_replaced(files: SecretFiles, tmp_path: Path) -> None:
    assert files.writable
    link = tmp_path / "linked"
    link.symlink_to(files.path)
    assert not SecretFiles(link).writable
