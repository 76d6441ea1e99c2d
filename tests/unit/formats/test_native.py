"""Every compiled twin has a pure original of its name and parameters, and both are tested."""

from __future__ import annotations

import inspect
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.for_each import for_each
from tests.support.fuzz_cases import FUZZERS
from tests.support.fuzz_twins import Pairs
from tests.support.twin_pairs import branches, function_pairs
from tests.support.twins import twin_modules_of
from tidemark.formats import native

ROOT = Path(__file__).resolve().parents[3]
SPEEDUPS = ROOT / "tidemark" / "formats" / "speedups"

try:
    PAIRS = function_pairs()
except ImportError:
    if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
        raise
    PAIRS = {}
built = pytest.mark.skipif(not PAIRS, reason=native.WHY_PURE or "not all twins are built")


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def test_both_branches_offer_the_same_functions() -> None:
    compiled, original = branches()
    assert compiled.keys() == original.keys()
    assert {name for name in native.__all__ if not name.isupper()} == compiled.keys()


def test_every_module_is_a_source_with_a_stub_and_is_listed() -> None:
    sources = {path.stem for path in SPEEDUPS.glob("*.pyx")}
    assert sources == {path.stem for path in SPEEDUPS.glob("*.pyi")} == set(native.MODULES)
    compiled, _ = branches()
    used = {module.rpartition(".")[2] for module in compiled.values()}
    assert set(native.MODULES) == used


@built
@for_each("name", sorted(branches()[0]))
def test_a_twin_has_its_originals_name_and_parameters(name: str) -> None:
    original, compiled = PAIRS[name]
    assert original.__name__ == compiled.__name__ == name
    assert parameters(compiled) == parameters(original)
    assert original.__doc__, "the contract stands at the original"


@built
@for_each("name", sorted(branches()[0]))
def test_twins_do_the_same_to_valid_and_to_damaged_input(name: str) -> None:
    """The cases also run under the address sanitizer: ``tests/processes``."""
    FUZZERS[name](Random(f"1 {name}"), Pairs().same, 2)


@pytest.mark.parametrize("crc32", twin_modules_of("checksum", zlib))
@given(st.binary(max_size=600), st.integers(0, (1 << 32) - 1))
@example(b"", 0)
@example(bytes(range(64)), 0)
@example(bytes(1 << 16), 0xFFFFFFFF)
@example(bytes(range(251)) * 2, 7)
def test_the_checksum_is_zlibs(crc32: Any, data: bytes, before: int) -> None:
    for start in range(min(4, len(data) + 1)):
        view = memoryview(data)[start:]
        assert crc32.crc32(view, before) == zlib.crc32(view, before)
        for size in range(min(140, len(view))):
            assert crc32.crc32(view[:size], before) == zlib.crc32(view[:size], before)
