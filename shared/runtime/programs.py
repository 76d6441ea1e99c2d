"""Names and command lines of Tidemark's own programs.

In the repository the services are the package ``services``; in an installed wheel they are
``tidemark.services``, so that they cannot collide with a package of the user's project
(docs/decisions/0034). The names below are right in both.
"""

from __future__ import annotations

import sys
from typing import Final

_ABOVE: Final = __name__.removesuffix("shared.runtime.programs")
SERVICES: Final = _ABOVE + "services"
"""Package of the services."""
DRILLS: Final = _ABOVE + "drills"
"""Package of the fault drills."""


def python_module(module: str) -> list[str]:
    """Command line that runs a module with this interpreter.

    ``-P`` keeps the current folder off the module path: a ``json.py`` there would be executed by
    every program that imports the standard library's.
    """
    return [sys.executable, "-P", "-m", module]


def service(name: str) -> list[str]:
    """Command line that starts a service: broker, reput or ha."""
    return python_module(f"{SERVICES}.{name}")
