"""The systemd units: systemd accepts them, and they name the programs and paths of the samples."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[4]
UNITS: Final = ROOT / "deploy" / "systemd"
SERVICES: Final = sorted(path.name for path in UNITS.glob("*.service"))
COMMON: Final = UNITS / "tidemark-.service.d" / "common.conf"
OF_SYSTEMD: Final = Path("/usr/lib/systemd/system")
EXPOSURE_MAX: Final = 2.0
"""Of 10, in the sense of `systemd-analyze security`; a unit without settings has 9.6."""
BEFORE_SIGKILL_S: Final = {"tidemark-broker": 15 + 30, "tidemark-reput": 10, "tidemark-ha": 3}
"""What the processes do after the stop: hand-over and open requests, dispatch, the lease."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root directory of a machine with systemd, our units and programs."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail("systemd-analyze is missing: install Debian's package systemd")
        pytest.skip("systemd-analyze is not installed")
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(OF_SYSTEMD, root / "usr/lib/systemd/system", symlinks=True)
    shutil.copytree(UNITS, root / "etc/systemd/system")
    programs = root / "opt/tidemark/bin"
    programs.mkdir(parents=True)
    for name in ("tidemark", *(Path(service).stem for service in SERVICES)):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return root


def unit(path: Path) -> configparser.ConfigParser:
    """Parse a unit file; of a repeated key the last value counts."""
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(path)
    return parsed


def test_systemd_verifies_every_unit_without_a_remark(root: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={root}", *SERVICES, "tidemark.target"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_is_broken_into_can_do_little(root: Path, service: str) -> None:
    command = ["systemd-analyze", "security", f"--root={root}", "--offline=true"]
    done = subprocess.run(
        [*command, f"--threshold={EXPOSURE_MAX * 10:.0f}", "--no-pager", service],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_starts_a_program_of_the_package_with_the_sample_of_its_name(service: str) -> None:
    settings = unit(UNITS / service)["Service"]
    program, option, config = settings["ExecStart"].split()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(program).parent == Path("/opt/tidemark/bin")
    assert Path(program).name == Path(service).stem
    assert Path(program).name in scripts
    assert (option, Path(config).parent) == ("--config", Path("/etc/tidemark"))
    assert list(UNITS.glob(f"*/{Path(config).name}"))


def test_processes_of_a_node_share_its_directories_and_stop_after_those_that_need_them() -> None:
    order = ["tidemark-broker.service", "tidemark-reput.service", "tidemark-ha.service"]
    for index, name in enumerate(order):
        found = unit(UNITS / name)
        # The reverse of the order of starts: the broker hands over while ha still runs.
        assert set(found["Unit"].get("After", "").split()) == set(order[index + 1 :])
        assert found["Unit"]["PartOf"] == "tidemark.target"
        assert found["Install"]["WantedBy"] == "tidemark.target"
        assert found["Service"]["StateDirectory"] == "tidemark"
        assert found["Service"]["RuntimeDirectory"] == "tidemark"
        assert found["Service"]["RuntimeDirectoryPreserve"] == "yes"


@pytest.mark.parametrize("service", BEFORE_SIGKILL_S)
def test_a_stop_is_not_cut_short(service: str) -> None:
    # The last fdatasync of log, queues and index takes up to 20 s on a slow disk.
    stop_s = int(unit(UNITS / f"{service}.service")["Service"]["TimeoutStopSec"])
    assert stop_s >= BEFORE_SIGKILL_S[service] + 20


def test_wrong_settings_are_not_tried_again_and_anything_else_is_for_ever() -> None:
    common = unit(COMMON)
    assert common["Service"]["RestartPreventExitStatus"] == "2"
    assert common["Service"]["Restart"] == "on-failure"
    assert common["Unit"]["StartLimitIntervalSec"] == "0"
