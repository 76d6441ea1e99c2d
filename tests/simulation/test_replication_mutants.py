"""Each mutant changes one statement or condition that a history executes."""

from __future__ import annotations

import ast

from tests.simulation.replication.mutants import Change, Mistake

SOURCE = '''
def __init__(self):
    self.end = 0

def decide(self, end, log):
    """What it says."""
    log.info("it was asked")
    if end > 0 and self.open:
        self.end = end
        self.wake()
    return end < 9
'''


def changed(mistake: Mistake | None) -> str:
    return ast.unparse(ast.fix_missing_locations(Change(mistake).visit(ast.parse(SOURCE))))


def test_each_mistake_changes_one_statement() -> None:
    change = Change()
    change.visit(ast.parse(SOURCE))
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    differences = []
    for mistake in change.mistakes:
        lines = changed(mistake).splitlines()
        assert len(lines) == len(plain)
        differences += [new.strip() for old, new in zip(plain, lines, strict=True) if old != new]
    assert differences == [
        "pass",  # self.end = end
        "pass",  # self.wake()
        "if not (end > 0 and self.open):",
        "if self.open:",
        "if end > 0:",
        "return not end < 9",
    ]


def test_marks_tell_which_statements_are_reached() -> None:
    numbers = set[int]()
    numbers = set[int]()
    names: dict[str, object] = {"_reached": numbers}
    exec(changed(None), names)
    decide = names["decide"]
    assert callable(decide)

    class Log:
        def info(self, line: str) -> None:
            del line

    assert decide(None, 0, Log())
    change = Change()
    change.visit(ast.parse(SOURCE))
    reached = {mistake.kind for mistake in change.mistakes if mistake.statement in numbers}
    assert reached == {"turned", "forgotten"}  # nothing is dropped: the condition is false
