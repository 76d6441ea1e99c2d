"""Names and command lines of Tidemark's own programs.

In the repository the services are the package ``services``; in an installed wheel they are
``tidemark.services``, so that they cannot collide with a package of the user's project
(docs/decisions/0034). The names below are correct in both cases.
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
    """Return the command line that runs a module with this interpreter.

    ``-P`` keeps the current directory off the module path: otherwise a ``json.py`` there would be
    executed by every program that imports the standard library's ``json``.
    """
    return [sys.executable, "-P", "-m", module]


def service(name: str) -> list[str]:
    """Return the command line that starts a service: broker, reput, ha or names."""
    return python_module(f"{SERVICES}.{name}")
