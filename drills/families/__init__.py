"""The drills of process groups, in families: each module registers its drills when imported."""

from __future__ import annotations

import importlib
import pkgutil

from drills.group import Group
from drills.stage import REGISTERED, Drill


def all_drills() -> list[Drill[Group]]:
    """Return all drills, by number."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(REGISTERED.values(), key=_order)


def _order(found: Drill[Group]) -> tuple[int, str]:
    return int(found.number.rstrip("abcd")), found.number
