"""All log lines that the code can write: found in its syntax, not by running it.

A line is a call of ``log.<level>(sentence, extra={"event": …})``, of a ``RateLimitedLogger``, or of
one of the ways in which the core of ha requests a log line. An event that is not in the call itself
(but in a variable) must be listed in ``INDIRECT``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
LEVELS: Final = {"debug", "info", "warning", "error", "critical", "exception", "log"}
PLACES: Final = {
    "services/broker": "broker",
    "services/reput": "reput",
    "services/ha": "ha",
    "services/names": "names",
    "shared": "all",
    "tidemark/client": "client",
}
INDIRECT: Final = {
    ("services/ha/shell/effect_runner.py", "note.event"): "the core's, found where they are wanted",
    ("shared/runtime/rate_limited_logger.py", "event"): "found where it is called",
}
MORE: Final = "…"
"""Facts that the call takes from elsewhere."""
DEFECT_FACTS: Final = frozenset({"code", "held_back"})


class Said(NamedTuple):
    """One line that can be written."""

    event: str
    service: str
    level: str
    """``any`` if it depends."""
    facts: frozenset[str]
    where: str


def said() -> list[Said]:
    """Return all lines that can be written."""
    found: list[Said] = []
    for place, service in PLACES.items():
        for path in sorted((ROOT / place).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            tree = ast.parse(path.read_text())
            names = _constants(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    found += _lines(node, node.func, name, service, names)
                elif isinstance(node, ast.Call) and _is_named(node.func, "Note"):
                    found += _note(node, name, service)
    return found


def _constants(tree: ast.Module) -> dict[str, str]:
    """Texts that a module gives a name."""
    return {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _lines(
    call: ast.Call, method: ast.Attribute, where: str, service: str, names: dict[str, str]
) -> Iterator[Said]:
    owner = ast.unparse(method.value)
    if _is_logger(method):
        yield from _logged(call, method.attr, where, service)
    elif method.attr == "say" and owner.endswith("_limited_log"):
        event, facts = _text(call.args[1]), _keywords(call, but={"level", "error"})
        if event is not None:
            level = _level(call, "warning")
            yield Said(event, service, level, frozenset({*facts, "held_back"}), where)
    elif method.attr == "defect":
        yield Said(
            "internal-error",
            service,
            "error",
            frozenset(_keywords(call)) | DEFECT_FACTS,
            where,
        )
    elif service == "ha" and method.attr in ("say", "alarm", "halt") and owner in OWNERS:
        first = call.args[0]
        event = names.get(first.id) if isinstance(first, ast.Name) else _text(first)
        if event is None:
            return  # the code of an error: the page has a row for all of them
        facts = _keywords(call, but={"level"})
        if method.attr == "say":
            yield Said(event, service, _level(call, "info"), frozenset(facts), where)
        else:
            yield Said(event, service, "warning", frozenset({*facts, "raised"}), where)


OWNERS: Final = ("context", "self.context", "self._context", "self")


def _note(call: ast.Call, where: str, service: str) -> Iterator[Said]:
    """A Note whose event is written there: of others, ``say`` and ``alarm`` tell."""
    event = _text(call.args[1])
    if event is not None:
        yield Said(event, service, "any", frozenset({MORE}), where)


def _logged(call: ast.Call, method: str, where: str, service: str) -> Iterator[Said]:
    extra = next((each.value for each in call.keywords if each.arg == "extra"), None)
    assert isinstance(extra, ast.Dict) or where == "shared/runtime/rate_limited_logger.py", (
        f"{where}:{call.lineno} writes a line without an event"
    )
    if not isinstance(extra, ast.Dict):
        return
    facts: set[str] = set()
    events: list[ast.expr] = []
    for key, value in zip(extra.keys, extra.values, strict=True):
        if key is None:
            facts.add(MORE)
        elif _text(key) == "event":
            events = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        else:
            facts.add(_text(key) or MORE)
    assert events, f"{where}:{call.lineno} writes a line without an event"
    for each in events:
        event = _text(each)
        if event is None:
            assert (where, ast.unparse(each)) in INDIRECT, f"{where}:{call.lineno}"
            continue
        level = {"log": "any", "exception": "error"}.get(method, method)
        yield Said(event, service, level, frozenset(facts), where)


def _is_logger(method: ast.Attribute) -> bool:
    if method.attr not in LEVELS:
        return False
    owner = ast.unparse(method.value)
    return owner in ("log", "logger", "logging") or owner.startswith("logging.getLogger")


def _is_named(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )


def _keywords(call: ast.Call, but: set[str] | None = None) -> set[str]:
    return {each.arg or MORE for each in call.keywords if each.arg not in (but or set())}


def _level(call: ast.Call, default: str) -> str:
    for each in call.keywords:
        if each.arg == "level":
            return ast.unparse(each.value).rpartition(".")[2].lower()
    return default


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
