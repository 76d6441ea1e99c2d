"""Feed both twins of every hot function the same hostile bytes: ``python -m`` this module.

    python -m tests.support.fuzz_twins --seed 1 --rounds 1 [--speedups DIRECTORY] [--only NAME]

With ``--speedups`` the compiled modules come from that directory and nowhere else: a build under
the address sanitizer. Prints its seed first; exits with 1, and says where, if two twins differ.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from random import Random
from types import ModuleType
from typing import Any

PACKAGE = "tidemark.formats.speedups"


class OnlyFrom(importlib.abc.MetaPathFinder):
    """Finds the compiled modules in one directory. It must be the first finder: ``import tidemark``
    loads them, and one loaded from elsewhere would be the one that is tested."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Implements ``importlib.abc.MetaPathFinder``."""
        if name.rpartition(".")[0] != PACKAGE:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, [self._directory])
        if found is None:
            raise ImportError(f"{name} is not in {self._directory}")
        return found


class Differ(Exception):
    """Two twins gave different results for the same input."""


class Pairs:
    """Calls originals and compiled twins by name."""

    def __init__(self) -> None:
        # Not at the top: whatever imports tidemark has to come after OnlyFrom.
        from tests.support.twin_pairs import function_pairs

        self._pairs = function_pairs()
        self.calls = 0

    def same(self, name: str, *arguments: object, **named: object) -> object:
        """What both twins return, or the type of what both raise; for damage with its text.

        Raises Differ.
        """
        self.calls += 1
        original, compiled = self._pairs[name]
        expected, found = (_called(twin, arguments, named) for twin in (original, compiled))
        if expected != found:
            raise Differ(
                f"{name}, call {self.calls}:\n  arguments {arguments!r}\n  and {named!r}\n"
                f"  original {expected!r}\n  compiled {found!r}"
            )
        return expected[0]


def _called(
    function: Any, arguments: tuple[object, ...], named: dict[str, object]
) -> tuple[object, list[bytes]]:
    from tests.support.fuzz_cases import Exact
    from tidemark.errors import CorruptRecord
    from tidemark.formats.record import UndecodableRecord

    given = [each.copy() if isinstance(each, Exact) else each for each in arguments]
    try:
        result = function(*given, **named)
    except Exception as error:  # noqa: BLE001 - any type is compared, none is hidden
        is_damage = isinstance(error, CorruptRecord | UndecodableRecord)
        result = type(error), str(error) if is_damage else ""
    return result, [bytes(each) for each in given if isinstance(each, memoryview)]


def main() -> int:
    """Run; 0 if no two twins differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="how many cases, as a factor")
    parser.add_argument("--speedups", help="directory of the compiled modules to test")
    parser.add_argument("--only", help="one function of tidemark.formats.native")
    options = parser.parse_args()
    if options.speedups:
        sys.meta_path.insert(0, OnlyFrom(options.speedups))
    fuzzers = importlib.import_module("tests.support.fuzz_cases").FUZZERS
    names = [options.only] if options.only else sorted(fuzzers)
    print(f"seed {options.seed}, rounds {options.rounds}", flush=True)
    for name in names:
        pairs = Pairs()
        try:
            fuzzers[name](Random(f"{options.seed} {name}"), pairs.same, options.rounds)
        except Differ as difference:
            print(difference)
            return 1
        print(f"{name}: {pairs.calls} calls, both twins the same", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
