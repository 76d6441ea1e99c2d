"""The drills of process groups, in families: each module registers its drills when imported."""

from __future__ import annotations

import importlib
import pkgutil

from drills.group import Group
from drills.stage import REGISTERED, Drill


def all_drills() -> list[Drill[Group]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(REGISTERED.values(), key=lambda d: (int(d.number.rstrip("abc")), d.number))
