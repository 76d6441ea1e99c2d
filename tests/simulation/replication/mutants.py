"""Random mistakes in the simulated code, and the share of them that the simulation finds.

``make simulation-mutants SEED=n COUNT=50`` draws places of ``services.ha`` and
``services.broker.replication`` that runs without a mistake execute. Each mistake drops a statement,
negates a condition, or drops an operand of one. Then seeds are run until one fails. A mistake
without an effect, for example because another check guards the same, counts as not found. Each one
is printed with its place.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Final, NamedTuple

from tests.simulation.replication.mutation import exchanged
from tests.simulation.replication.run import SeedFailed, run_seed

PACKAGES: Final = ("services.ha", "services.broker.replication")
REACHED_SEEDS: Final = 6
TIMEOUT_S: Final = 3_600
"""A run that does not end within this time counts as failed."""
LOGGING: Final = {"debug", "info", "warning", "error", "exception", "inc", "observe"}
"""Calls that only write a log line or a metric."""


class Mistake(NamedTuple):
    """One change of one statement."""

    statement: int
    """Index of the statement in its module."""
    kind: str
    part: int
    """Index of the operand of a condition that is dropped."""


class Change(ast.NodeTransformer):
    """Marks the statements of a module, or makes one mistake. Statements are numbered."""

    def __init__(self, mistake: Mistake | None = None) -> None:
        self.mistakes: list[Mistake] = []
        self.lines: list[int] = []
        """Line of each statement."""
        self._mistake, self._depth = mistake, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Change every list of statements within functions, but not in constructors: an object
        without an attribute fails at once."""
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if getattr(node, "name", "") == "__init__":
            return node
        self._depth += is_function
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if self._depth and isinstance(statements, list):
                setattr(node, field, [new for old in statements for new in self._changed(old)])
        self._depth -= is_function
        return node

    def _changed(self, statement: ast.stmt) -> list[ast.stmt]:
        number = len(self.lines)
        self.lines.append(statement.lineno)
        found = [Mistake(number, *each) for each in _kinds(statement)]
        self.mistakes += found
        if self._mistake is None:
            mark = ast.parse(f"_reached.add({number})").body[0]
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            is_scope = isinstance(statement, ast.Nonlocal | ast.Global)
            return [statement] if is_text or is_scope else [mark, statement]
        return [_with(statement, self._mistake)] if self._mistake in found else [statement]


def _kinds(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            if name not in LOGGING and not _only_notes(statement):
                yield "dropped", 0
        case ast.Expr(value=ast.Await()) | ast.Raise() | ast.Delete() | ast.AugAssign():
            yield "dropped", 0
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped", 0
    condition = _condition(statement)
    if condition is not None:
        yield "turned", 0
        if isinstance(condition, ast.BoolOp):
            yield from (("forgotten", part) for part in range(len(condition.values)))


def _only_notes(statement: ast.stmt) -> bool:
    """Whether the statement only writes a line of the log."""
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(ast.unparse(call).rpartition(".")[2] == "Note" for call in calls)


def _condition(statement: ast.stmt) -> ast.expr | None:
    match statement:
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
            return test
        case ast.Return(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) as value):
            return value
    return None


def _with(statement: ast.stmt, mistake: Mistake) -> ast.stmt:
    condition, changed = _condition(statement), ast.expr()
    match mistake.kind:
        case "dropped":
            return ast.Pass()
        case "turned":
            assert condition is not None
            changed = ast.UnaryOp(ast.Not(), condition)
        case _:
            assert isinstance(condition, ast.BoolOp)
            rest = [*condition.values[: mistake.part], *condition.values[mistake.part + 1 :]]
            changed = rest[0] if len(rest) == 1 else ast.BoolOp(condition.op, rest)
    if isinstance(statement, ast.Return):
        statement.value = changed
    elif isinstance(statement, ast.If | ast.While):
        statement.test = changed
    return statement


def _tree(module: ModuleType, change: Change) -> ast.Module:
    tree = change.visit(ast.parse(inspect.getsource(module)))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)


def _reached() -> list[tuple[str, Mistake]]:
    """The mistakes at statements that the first seeds execute."""
    modules = {name: sys.modules[name] for name in sorted(sys.modules) if name.startswith(PACKAGES)}
    changes = {name: Change() for name in modules}
    with contextlib.ExitStack() as stack:
        for name, module in modules.items():
            vars(module)["_reached"] = set[int]()
            stack.enter_context(exchanged(module, _tree(module, changes[name])))
        for seed in range(REACHED_SEEDS):
            run_seed(seed)
    return [
        (name, mistake)
        for name, change in changes.items()
        for mistake in change.mistakes
        if mistake.statement in vars(modules[name])["_reached"]
    ]


def _play(name: str, mistake: Mistake, tries: int) -> str:
    """Description of the first seed that fails; empty if none does."""
    module = sys.modules[name]
    with exchanged(module, _tree(module, Change(mistake))):
        for seed in range(tries):
            try:
                run_seed(seed)
            except SeedFailed as error:
                return str(error).splitlines()[0]
    return ""


def _can_be_planted(name: str, mistake: Mistake) -> bool:
    """Whether the changed function has the same closure as the original."""
    module = sys.modules[name]
    try:
        with exchanged(module, _tree(module, Change(mistake))):
            return True
    except AssertionError:
        return False


def _find(place: tuple[str, Mistake], tries: int) -> tuple[bool, str]:
    """Whether a separate process finds the mistake, and the line to print. Raises RuntimeError if
    that process fails itself."""
    (name, mistake), change = place, Change()
    _tree(sys.modules[name], change)
    mistake_text = f"{name} line {change.lines[mistake.statement]} {mistake.kind} {mistake.part}"
    arguments = [name, str(mistake.statement), mistake.kind, str(mistake.part)]
    command = [sys.executable, "-m", __spec__.name, "--tries", str(tries), "--play", *arguments]
    try:
        played = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return True, f"{mistake_text}: found: no end in {TIMEOUT_S} s"
    if played.returncode:
        raise RuntimeError(f"{mistake_text}: {played.stderr}")
    found = played.stdout.strip()
    return bool(
        found
    ), f"{mistake_text}: {f'found: {found}' if found else f'not found by {tries} seeds'}"


def main() -> None:
    """Draw the mistakes, run them and count those that are found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--play", nargs=4)
    options = parser.parse_args()
    if options.play:
        name, statement, kind, part = options.play
        print(_play(name, Mistake(int(statement), kind, int(part)), options.tries))
        return
    places = _reached()
    shuffled = random.Random(options.seed).sample(places, len(places))
    can_be = (place for place in shuffled if _can_be_planted(*place))
    drawn = list(itertools.islice(can_be, options.count))
    print(f"seed {options.seed}: {options.count} of {len(places)} mistakes", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        played = pool.map(lambda place: _find(place, options.tries), drawn)
        count = 0
        for is_found, line in played:
            count += is_found
            print(line, flush=True)
    print(f"{count} of {options.count} are found")


if __name__ == "__main__":
    main()
