"""The docs are checked where they can be: codes have headings, links lead somewhere, paths are."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import services
import shared
import tidemark
from services.ha import following
from services.ha import metrics as ha_metrics
from tidemark.errors import TidemarkError
from tidemark.testing.drills.families import all_drills

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]
    if path.name
)


def _all_errors() -> set[type[TidemarkError]]:
    for package in (tidemark, shared, services):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found: set[type[TidemarkError]] = set()
    todo = [TidemarkError]
    while todo:
        error = todo.pop()
        found.add(error)
        todo += error.__subclasses__()
    return {error for error in found if error.__module__.startswith(("tidemark", "shared", "serv"))}


def test_every_error_code_heads_an_entry_of_the_runbook() -> None:
    headings = set(
        re.findall(r"^## `([a-z-]+)`$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    )
    codes = {error.code for error in _all_errors()}
    assert codes - headings == set(), "codes without a heading in docs/runbook.md"
    assert headings - codes == set(), "headings without a code"


def test_every_alarm_of_a_group_heads_an_entry_of_the_runbook() -> None:
    raised = set(following.RETRIED_FAULTS)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_path_that_a_page_names_exists(page: Path) -> None:
    for path in re.findall(
        r"`((?:tidemark|shared|services|tests)/[\w/.-]+\.py)`", page.read_text()
    ):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make (?:-B )?([a-z-]+)", page.read_text()):
        assert target in targets, f"{page.name} names make {target}"


def test_make_help_prints_every_target() -> None:
    shown = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for target in ("help", "setup", "run", "test", "check", "bench", "clean"):
        assert f"make {target} " in shown


_KINDS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "BulkCounter": "counter",
    "BulkHistogram": "histogram",
    "GaugeMetricFamily": "gauge",
    "CounterMetricFamily": "counter",
    "read": "gauge",  # the services' metrics objects: a gauge that is read when asked
}


def _registered_metrics() -> dict[str, tuple[str, str]]:
    """Name -> type and labels, of every metric that the services register."""
    found: dict[str, tuple[str, str]] = {}
    for path in [*(ROOT / "services").rglob("*.py"), ROOT / "shared/runtime/metrics.py"]:
        tree = ast.parse(path.read_text())
        # Loops first, for their variables: a name may be made from one of a loop over literals.
        words: dict[str, list[str]] = {}
        for loop in ast.walk(tree):
            if isinstance(loop, ast.For | ast.comprehension) and isinstance(loop.iter, ast.Tuple):
                match loop.target:
                    case ast.Tuple(elts=[ast.Name(id=variable), *_]):
                        words[variable] = [
                            row.elts[0].value
                            for row in loop.iter.elts
                            if isinstance(row, ast.Tuple)
                            and isinstance(row.elts[0], ast.Constant)
                            and isinstance(row.elts[0].value, str)
                        ]
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            match call.func:
                case ast.Attribute(attr=function) | ast.Name(id=function):
                    kind = _KINDS.get(function)
                case _:
                    continue
            for name in _spelled(call.args[0], words):
                if kind is not None and name.startswith("tidemark_"):
                    given = [each.value for each in call.keywords if each.arg == "labels"]
                    labels = [
                        each for each in (*call.args[2:3], *given) if isinstance(each, ast.List)
                    ]
                    named = ", ".join(ast.literal_eval(labels[0]) if labels else ()) or "–"
                    suffix = "_total" if function == "CounterMetricFamily" else ""
                    found[name + suffix] = (kind, named)
    return found


def _spelled(name: ast.expr, words: dict[str, list[str]]) -> list[str]:
    """All values of a string literal, or of an f-string with one variable of a loop."""
    match name:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=variable):
            return words.get(variable, [])
        case ast.JoinedStr(values=parts):
            found = [""]
            for part in parts:
                match part:
                    case ast.FormattedValue(value=ast.Name(id=variable)):
                        found = [text + word for text in found for word in words.get(variable, ())]
                    case ast.Constant(value=str(text)):
                        found = [before + text for before in found]
            return found
    return []


def _metrics_of_ha() -> dict[str, tuple[str, str]]:
    """The same of ha, whose families are made of what the replica says of itself."""

    class Links:
        accepted_count = refused_count = count = 0

        def sent_to(self, node: str) -> int:
            return 0

        def connected(self, node: str) -> bool:
            return False

    facts = dict.fromkeys(("log_end", "durable_end", "confirm", "lag_bytes", "lag_ms"), 1)
    nodes = [{"node": name, "state": "master", "in_sync": True, **facts} for name in ("a", "b")]
    status = {
        "epoch": 1,
        "min_in_sync": 1,
        "paused": False,
        "lease": {"deadline_in_ms": 1, "age_ms": 1},
        "nodes": nodes,
    }
    counters = dict.fromkeys(ha_metrics.DEFINITIONS, 0.0)
    kinds = {name: {"kind": 0.0} for name in ha_metrics.KINDS}
    collector = ha_metrics.HaMetrics(
        CollectorRegistry(), "a", lambda: status, lambda: counters, Links(), lambda: kinds
    )
    found = {}
    for family in collector.collect():
        (sample, *_) = family.samples
        found[sample.name] = (family.type, ", ".join(sample.labels) or "–")
    return found


def test_every_metric_has_a_row_with_its_type_and_labels_and_every_row_a_metric() -> None:
    rows = {
        name: (kind, labels)
        for name, kind, labels in re.findall(
            r"^\| `(tidemark_\w+)` \| (\w+) \| [^|]+ \| ([^|]+) \|",
            (ROOT / "docs/metrics.md").read_text(),
            re.MULTILINE,
        )
    }
    registered = _registered_metrics() | _metrics_of_ha()
    assert "tidemark_log_flushed_offset_bytes" in registered, "names made in a loop are found"
    assert registered.keys() - rows.keys() == set(), "metrics without a row in docs/metrics.md"
    assert rows.keys() - registered.keys() == set(), "rows of docs/metrics.md without a metric"
    assert rows == registered, "types and labels"


def test_alert_rules_name_metrics_of_the_same_page() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    rules = page.partition("```yaml")[2]
    named = {name.removesuffix("_bucket") for name in re.findall(r"\btidemark_\w+", rules)}
    assert named
    assert named - set(re.findall(r"^\| `(tidemark_\w+)`", page, re.MULTILINE)) == set()


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
    drills = {drill.number for drill in all_drills()}
    for numbers in re.findall(r"drills? ([\d, anto]+\w?)", page):
        for number in re.findall(r"\d+a?", numbers):
            assert number in drills, f"there is no drill {number}"
