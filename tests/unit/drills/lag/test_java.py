"""`make lag` needs Java, which is found on the path or through JAVA_HOME, set or not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("where", "is_set", "found"),
    [("path", False, True), ("home", True, True), ("", False, False), ("", True, False)],
)
def test_java_is_found_on_the_path_or_by_java_home(
    tmp_path: Path, where: str, is_set: bool, found: bool
) -> None:
    # Without JAVA_HOME, make failed with "JAVA_HOME: unbound variable" even if Java was on the
    # path.
    folders = {"path": tmp_path / "path", "home": tmp_path / "home" / "bin"}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        if name == where:
            (folder / "java").write_text("#!/bin/sh\n")
            (folder / "java").chmod(0o755)
    make = shutil.which("make")
    assert make is not None
    home = {"JAVA_HOME": str(tmp_path / "home")} if is_set else {}
    done = subprocess.run(
        [make, "-s", "java"],
        cwd=ROOT,
        env={"PATH": str(tmp_path / "path"), **home},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode == 0) == found, done.stderr
    assert ("apt-get install openjdk-17" in done.stdout) == (not found)
