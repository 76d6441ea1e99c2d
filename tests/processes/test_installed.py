"""Tidemark installed from its wheel, in projects that have packages of the same names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from analytics.tables import TableRoot
from tests.support.node import wait_until
from tidemark.testing.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
SHADOWS = ("services", "shared", "analytics", "drills")
"""Packages at the top of the repository: names that a user's project may have as well."""
BOOBY_TRAP = "raise SystemExit('the json.py of the current folder was executed')"
TEST = """
import services, shared, analytics, drills  # the project's own
import tidemark

pytest_plugins = ["tidemark.testing.fixtures"]


async def first_body(url):
    async with tidemark.connect(url) as mq:
        await mq.create_topic("orders", queues=1)
        await mq.send("orders", b"hello")
        return (await mq.pull("orders", 0, offset=0, wait_ms=10_000)).messages[0].body


async def test_the_store_in_this_process(tidemark_store):
    assert services.MINE and shared.MINE and analytics.MINE and drills.MINE
    assert await first_body(tidemark_store.url) == b"hello"


async def test_a_node_of_processes(tidemark_node):
    assert await first_body(tidemark_node.url) == b"hello"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; its dependencies are those of this environment."""
    base = tmp_path_factory.mktemp("installed")
    tree = base / "tree"
    tree.mkdir()
    for each in ("tidemark", *SHADOWS):
        shutil.copytree(ROOT / each, tree / each, ignore=shutil.ignore_patterns("__pycache__"))
    for each in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / each, tree)
    # Compiling takes half a minute and changes nothing here: the pure implementations run.
    pip = [sys.executable, "-m", "pip"]
    command = [*pip, "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--wheel-dir", str(base), str(tree)],
        check=True,
        env={**os.environ, "CC": "/bin/false"},
    )
    [wheel] = base.glob("*.whl")
    venv = base / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    install = [*pip, "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True)
    [site] = venv.glob("lib/python*/site-packages")
    # A .pth file adds the folder, and none of the .pth files in it: not the editable install.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return venv


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with packages of the names that the repository has at its top."""
    for each in SHADOWS:
        (tmp_path / each).mkdir()
        (tmp_path / each / "__init__.py").write_text("MINE = True\n")
    return tmp_path


def variables() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def test_a_project_with_packages_of_the_same_names_uses_the_fixtures(
    environment: Path, project: Path
) -> None:
    (project / "test_mine.py").write_text(TEST)
    done = subprocess.run(
        [
            *(environment / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-o", "asyncio_mode=auto", "--rootdir", project, project),
        ],
        cwd=project,
        env=variables(),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_drills_of_the_wheel_are_found(environment: Path, project: Path) -> None:
    command = [str(environment / "bin" / "tidemark"), "drill", "--list"]
    done = subprocess.run(command, cwd=project, env=variables(), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert " kill-master " in done.stdout


@pytest.fixture
def dev(environment: Path, project: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    # Only here: pytest itself, started in this folder, would import it.
    (project / "json.py").write_text(BOOBY_TRAP)
    said = project / "said"
    with said.open("wb") as output:
        running = subprocess.Popen(
            [
                *(environment / "bin" / "tidemark", "dev", "--nodes", "1"),
                *("--store", project / "store", "--port", str(free_ports(3)[0])),
            ],
            cwd=project,
            env=variables(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield running, said
        finally:
            running.terminate()
            running.wait(30)


def test_no_module_of_the_current_folder_is_executed(
    dev: tuple[subprocess.Popen[bytes], Path],
) -> None:
    # Services were started as `python -m`, which puts the current folder on the module path.
    running, said = dev

    def serves() -> bool:
        assert running.poll() is None, said.read_text()
        assert "was executed" not in said.read_text()
        return "Stop with Ctrl-C" in said.read_text()

    wait_until(serves, "a node that serves")


@pytest.mark.parametrize("service", ["broker", "reput", "ha", "analytics"])
def test_each_program_is_found(environment: Path, service: str) -> None:
    program = environment / "bin" / f"tidemark-{service}"
    done = subprocess.run([program, "--help"], env=variables(), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: ")


def test_the_templates_of_the_lag_report_are_in_the_wheel(
    environment: Path, tmp_path: Path
) -> None:
    TableRoot.create(tmp_path / "tables")
    program = environment / "bin" / "tidemark-analytics"
    done = subprocess.run(
        [program, "report", "--tables", tmp_path / "tables", "--out", tmp_path],
        env=variables(),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert "<h1>Nothing is known" in (tmp_path / "report.html").read_text()


def test_a_script_beside_a_clone_that_is_called_tidemark_imports_the_package(
    tmp_path: Path,
) -> None:
    # The clone's folder has no __init__.py: Python took it for a namespace package, because the
    # package itself was found only by a finder that comes after the search of the path.
    (tmp_path / "tidemark").mkdir()
    script = tmp_path / "hello.py"
    script.write_text("import tidemark; print(tidemark.connect.__name__)")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=variables(), text=True, capture_output=True
    )
    assert done.stdout == "connect\n", done.stderr
