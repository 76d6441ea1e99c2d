"""`make lag` needs Java, which is found through JAVA_HOME, or on the path if that is not set."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("where", "version", "is_set", "named"),
    [
        ("path", "17.0.13", False, None),
        ("path", "21", False, None),
        ("home", "17.0.13", True, None),
        ("path", "1.8.0_392", False, 'openjdk version "1.8.0_392"'),
        ("path", "11.0.2", False, 'openjdk version "11.0.2"'),
        # Spark takes JAVA_HOME, whatever is on the path.
        ("path", "17.0.13", True, "home/bin/java"),
        ("", "", False, "java -version says"),
    ],
)
def test_java_is_found_by_java_home_or_on_the_path(
    tmp_path: Path, where: str, version: str, is_set: bool, named: str | None
) -> None:
    # Without JAVA_HOME, make failed with "JAVA_HOME: unbound variable" even if Java was on the
    # path. An old Java failed within Spark.
    done = make(tmp_path, "java", where, version, is_set=is_set)
    if named is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode != 0
        assert named in done.stderr
        assert "apt-get install openjdk-17" in done.stderr


def test_installing_spark_finds_java_as_make_lag_does() -> None:
    # With Java in JAVA_HOME only, `make lag` found it and the step after that did not.
    text = (ROOT / "Makefile").read_text()
    recipe = text.partition("\n$(ANALYTICS_STAMP):")[2].split("\n\n")[0]
    assert "$(MAKE) -s java" in recipe
    assert "java -version" not in recipe


def make(
    tmp_path: Path, target: str, where: str, version: str, *, is_set: bool
) -> subprocess.CompletedProcess[str]:
    folders = {"path": tmp_path / "path", "home": tmp_path / "home" / "bin"}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        if name == where:
            (folder / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" x' >&2\n")
            (folder / "java").chmod(0o755)
    command = shutil.which("make")
    assert command is not None
    home = {"JAVA_HOME": str(tmp_path / "home")} if is_set else {}
    return subprocess.run(
        [command, "-s", target],
        cwd=ROOT,
        env={"PATH": str(tmp_path / "path"), **home},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
