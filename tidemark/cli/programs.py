"""Console scripts: the command line, and those that start a service or analytics.

The scripts of an installed package name one module for all installations, while the services are
``services`` in the repository and ``tidemark.services`` in a wheel (docs/decisions/0034). Imports
nothing of the command line: a service starts as fast through its script as through ``python -m``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from shared.runtime.programs import SERVICES

INTERRUPTED: Final = 130


def tidemark() -> None:
    """Run the command line."""
    try:
        # Takes half a second, in which an impatient Ctrl-C would show a traceback.
        from tidemark.cli.main import main
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    main()


def broker() -> None:
    """Run a broker."""
    import_module(f"{SERVICES}.broker.__main__").main()


def reput() -> None:
    """Run reput."""
    import_module(f"{SERVICES}.reput.__main__").main()


def ha() -> None:
    """Run ha."""
    import_module(f"{SERVICES}.ha.__main__").main()


def analytics() -> None:
    """Run a job of lag analytics."""
    import_module(f"{SERVICES.removesuffix('services')}analytics.main").main()
