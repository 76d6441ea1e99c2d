"""The source distribution and the wheel: complete, reproducible, running without a checkout."""

from __future__ import annotations

import asyncio
import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

from deploy.dist.build import ROOT, NotBuilt, Packages, built
from deploy.dist.trial import command_without_extra, first_message
from deploy.docker.locked import locked, pins_of
from tidemark.testing.ports import free_ports

pytestmark = [pytest.mark.xdist_group("dist"), pytest.mark.timeout(900)]

EPOCH: Final = 1_700_000_000


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    # Without optimisation: the compiler then takes a tenth of the time.
    base = tmp_path_factory.mktemp("dist")
    return built(base / "out", base / "work", epoch=EPOCH, flags="-O0")


@pytest.fixture(scope="module")
def client(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("client"), packages.wheel, ["run"])


@pytest.fixture(scope="module")
def server(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("server"), packages.wheel, ["run", "server"])


def environment(directory: Path, wheel: Path, extras: list[str]) -> Path:
    """Install the wheel, and copies of the packages of these extras that this environment has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    [site] = directory.glob("lib/python*/site-packages")
    for name in pins_of(locked(extras)):
        installed = importlib.metadata.distribution(name)
        for file in installed.files or ():
            if ".." not in file.parts:  # not a script in bin
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), site / file)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    # The lock has all that the wheel needs, in versions that the wheel allows.
    subprocess.run([*pip, "check"], check=True, stdout=subprocess.DEVNULL)
    return directory


def test_two_builds_of_equal_sources_give_equal_bytes(packages: Packages, tmp_path: Path) -> None:
    again = built(tmp_path / "out", tmp_path / "work", epoch=EPOCH, flags="-O0")
    assert [path.name for path in again] == [path.name for path in packages]
    for first, second in zip(packages, again, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_a_wheel_without_its_compiled_modules_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # setuptools goes on without them, because an installation from source may.
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(NotBuilt, match="lacks compiled modules: checked, checksum, "):
        built(tmp_path / "out", tmp_path / "work", epoch=EPOCH, flags="-O0")


def test_the_wheel_is_for_any_linux_with_glibc_2_17_and_has_no_path_of_this_machine(
    packages: Packages, tmp_path: Path
) -> None:
    wheel = packages.wheel
    assert "manylinux_2_17_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        compiled = [name for name in archive.namelist() if name.endswith(".so")]
        assert len(compiled) == len(list((ROOT / "tidemark/formats/speedups").glob("*.pyx")))
        for name in compiled:
            content = archive.read(name)
            # The library folder of this Python was once the run path of each module.
            for path in (sys.base_prefix, str(ROOT), str(tmp_path.parent)):
                assert path.encode() not in content, name


def test_both_packages_have_the_licence_and_no_foreign_file(packages: Packages) -> None:
    with tarfile.open(packages.sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(packages.wheel) as wheel:
        installed = set(wheel.namelist())
    assert {"LICENSE", "NOTICE", "CHANGELOG.md", "requirements.lock", "setup.py"} <= sources
    licenses = "tidemark_mq-0.1.0.dist-info/licenses"
    assert {f"{licenses}/LICENSE", f"{licenses}/NOTICE"} <= installed
    assert not [name for name in sources if name.endswith((".so", ".c", ".pyc"))]
    assert not [name for name in sources if name.startswith(("tests", "build", ".venv"))]
    tops = {name.partition("/")[0] for name in installed}
    assert tops == {"tidemark", "tidemark_mq-0.1.0.dist-info"}
    assert not [name for name in installed if name.endswith((".pyx", ".pxi", ".h", ".c"))]


def test_a_client_alone_sends_a_first_message_to_an_installed_node(
    client: Path, server: Path, tmp_path: Path
) -> None:
    port = free_ports(3)[0]
    printed = asyncio.run(first_message(server, client, store=tmp_path / "store", port=port))
    assert printed == "message received; of the extra server: nothing\n"


@pytest.mark.parametrize("program", ["tidemark", "tidemark-broker", "tidemark-analytics"])
def test_a_program_without_its_extra_says_in_one_line_what_to_install(
    client: Path, program: str
) -> None:
    extra = "analytics" if program == "tidemark-analytics" else "server"
    [line] = command_without_extra(client, program).splitlines()
    assert line.endswith(f'is not installed: run pip install "tidemark-mq[{extra}]"')
