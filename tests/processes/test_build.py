"""Building without a C compiler: the pure implementation runs, and a message says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHICH = "from tidemark.formats import native; print(native.__file__, native.WHY_PURE, sep='\\n')"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources alone, as a fresh clone has them."""
    shutil.copytree(
        ROOT / "tidemark",
        tmp_path / "tidemark",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    shutil.copy(ROOT / "setup.py", tmp_path)
    return tmp_path


def run(tree: Path, *arguments: str, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "TIDEMARK_PURE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**environment, **variables},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=200,
    ).stdout


@pytest.mark.timeout(600)
def test_without_a_compiler_the_build_succeeds_and_the_reason_for_pure_code_is_known(
    tree: Path,
) -> None:
    # The build once failed: cythonize makes new extensions, and lost that they are optional.
    said = run(tree, "setup.py", "build_ext", "--inplace", CC="/bin/false")
    assert 'building extension "tidemark.formats.speedups.encode" failed' in said
    assert not list(tree.rglob("*.so"))
    where, why = run(tree, "-c", WHICH).splitlines()
    assert Path(where).is_relative_to(tree)
    assert "the native modules are not built" in why
    assert "a C compiler" in why


def test_the_pure_implementation_runs_on_request() -> None:
    _, why = run(ROOT, "-c", WHICH, TIDEMARK_PURE="1").splitlines()
    assert why == "TIDEMARK_PURE is set"
    output = run(ROOT, "-c", "import sys, tidemark; print(*sys.modules)", TIDEMARK_PURE="1")
    assert not [name for name in output.split() if name.startswith("tidemark.formats.speedups.")]
