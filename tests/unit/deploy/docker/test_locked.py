"""The image's packages are the lock's: all that the project needs, and none of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import Final

import pytest

from deploy.docker.locked import ROOT, needed, pins_of, wanted

LOCK: Final = (ROOT / "requirements.lock").read_text()
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())

EXAMPLE: Final = """\
app==1.0 \\
    --hash=sha256:aa
    # via project (pyproject.toml)
left-pad==2.0 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
    # via app, other
deep==3.0 \\
    --hash=sha256:dd
    # via left-pad
other==4.0 \\
    --hash=sha256:ee
    # via project (pyproject.toml)
"""


def test_dependencies_are_followed_through_the_lock() -> None:
    pins = pins_of(EXAMPLE)
    assert needed(pins, {"app"}) == ["app", "deep", "left-pad"]
    assert needed(pins, {"other"}) == ["deep", "left-pad", "other"]
    assert needed(pins, {"deep"}) == ["deep"]


def test_a_package_keeps_all_its_hashes() -> None:
    assert pins_of(EXAMPLE)["left-pad"].lines[1:3] == [
        "    --hash=sha256:bb \\",
        "    --hash=sha256:cc",
    ]


def test_a_package_that_the_lock_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="has no absent: run `make lock`"):
        needed(pins_of(EXAMPLE), {"app", "absent"})


def test_an_extra_that_names_extras_of_the_project_has_their_dependencies() -> None:
    project = {
        "build-system": {"requires": []},
        "project": {
            "name": "Left.Pad",
            "dependencies": ["app>=1"],
            "optional-dependencies": {
                "server": ["deep>=3"],
                "tools": ["other[speed]>=1"],
                "all": ["left-pad[server,tools]", "last"],
            },
        },
    }
    assert wanted(project, ["run", "all"]) == {"app", "deep", "other", "last"}
    assert wanted(project, ["server"]) == {"deep"}


@pytest.mark.parametrize("text", ["    --hash=sha256:aa\n", "app\n", "-e .\n", "app>=1\n"])
def test_a_lock_that_pins_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"requirements\.lock: "):
        pins_of(text)


def test_the_image_has_every_dependency_of_the_project_and_of_the_cluster_client() -> None:
    found = needed(pins_of(LOCK), wanted(PROJECT, ["run", "k8s"]))
    assert {"aiohttp", "click", "msgpack", "msgspec", "rich", "uvloop"} <= set(found)
    assert "kubernetes-asyncio" in found
    assert set(needed(pins_of(LOCK), wanted(PROJECT, ["run", "server"]))) < set(found)
    assert {"yarl", "multidict", "urllib3"} <= set(found), "and what these need in turn"


def test_the_image_has_no_tool_of_the_tests_or_of_the_build() -> None:
    found = needed(pins_of(LOCK), wanted(PROJECT, ["run", "k8s"]))
    assert not {"pytest", "hypothesis", "mypy", "ruff", "cython", "setuptools"} & set(found)


def test_the_script_prints_lines_that_the_lock_has() -> None:
    printed = subprocess.run(
        [sys.executable, "-I", ROOT / "deploy/docker/locked.py", "build"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.findall(r"^([a-z-]+)==", printed, re.MULTILINE) == ["cython", "setuptools"]
    assert set(printed.splitlines()) <= set(LOCK.splitlines())
    assert printed.count("--hash=sha256:") > 2
