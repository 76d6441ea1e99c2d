"""Mistakes that the simulation has to find, planted for the length of a ``with``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple


class Planted(NamedTuple):
    """One mistake."""

    plant: Callable[[], AbstractContextManager[None]]
    symptom: str
    """Regular expression of how it shows itself first."""
    seed: int
    """One that finds it."""


FAULTS: Final[dict[str, Planted]] = {}
