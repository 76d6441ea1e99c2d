"""The docs are checked where they can be: codes have headings, links lead somewhere, paths are."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
from pathlib import Path

import analytics
import drills
import services
import shared
import tidemark
from drills.families import all_drills
from services.ha.core import replica_context
from tests.support.for_each import for_each
from tidemark.errors import OS_ERROR, TidemarkError

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]
    if path.name
)


def _all_errors() -> set[type[TidemarkError]]:
    for package in (tidemark, shared, services, analytics, drills):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found: set[type[TidemarkError]] = set()
    todo = [TidemarkError]
    while todo:
        error = todo.pop()
        found.add(error)
        todo += error.__subclasses__()
    ours = ("tidemark", "shared", "services", "analytics", "drills")
    return {error for error in found if error.__module__.startswith(ours)}


def test_every_error_code_heads_an_entry_of_the_runbook() -> None:
    headings = set(
        re.findall(r"^## `([a-z-]+)`$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    )
    codes = {error.code for error in _all_errors()} | {OS_ERROR}
    assert codes - headings == set(), "codes without a heading in docs/runbook.md"
    assert headings - codes == set(), "headings without a code"


def test_every_alarm_of_a_group_heads_an_entry_of_the_runbook() -> None:
    raised = set(replica_context.RETRIED_FAULTS)
    for path in (ROOT / "services/ha").rglob("*.py"):
        tree = ast.parse(path.read_text())
        named = {
            node.target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        }
        for call in ast.walk(tree):
            match call:
                case ast.Call(func=ast.Attribute(attr="alarm" | "halt"), args=[first, *_]):
                    match first:
                        case ast.Constant(value=str(code)):
                            raised.add(code)
                        case ast.Name(id=name) if name in named:
                            raised.add(named[name])
    headings = set(
        re.findall(r"^##+ `([a-z-]+)`$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    )
    assert {"lease-missing", "unadopted-store", "bad-stream"} <= raised, "codes are found"
    assert raised - headings == set(), "alarms without a heading in docs/runbook.md"


def test_every_error_has_a_title_and_a_fitting_status() -> None:
    for error in _all_errors():
        assert error.title, error
        assert 400 <= error.status < 600, error


@for_each("page", PAGES)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@for_each("page", PAGES)
def test_every_source_path_that_a_page_names_exists(page: Path) -> None:
    for path in re.findall(
        r"`((?:tidemark|shared|services|tests)/[\w/.-]+\.py)`", page.read_text()
    ):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


@for_each("page", PAGES)
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make (?:-B )?([a-z0-9-]+)", page.read_text()):
        assert target in targets, f"{page.name} names make {target}"


def test_make_help_prints_every_target() -> None:
    shown = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for target in ("help", "setup", "run", "test", "check", "bench", "clean"):
        assert f"make {target} " in shown


def test_every_test_and_drill_that_the_page_on_durability_names_is_there() -> None:
    page = (ROOT / "docs/durability.md").read_text()
    files: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        files[path.name] = files.get(path.name, "") + path.read_text()
    named = re.findall(r"(test_\w+\.py)(?:::(test_\w+))?", page)
    assert len(named) > 10
    for file, test in named:
        assert file in files, f"{file} is not a file of tests"
        assert f"def {test}" in files[file], f"{file} has no {test}"
    known = {drill.number for drill in all_drills()}
    for numbers in re.findall(r"drills? ([\d, anto]+\w?)", page):
        for number in re.findall(r"\d+a?", numbers):
            assert number in known, f"there is no drill {number}"
