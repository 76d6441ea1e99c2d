"""Console scripts for the command line, the services and analytics.

A script of an installed package names one module for all installations, while the services are
``services`` in the repository and ``tidemark.services`` in a wheel (docs/decisions/0034). This
module imports nothing of the command line, so that a service starts as fast as with ``python -m``.
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
        # The import takes half a second, during which Ctrl-C must not show a traceback.
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


def names() -> None:
    """Run a name service."""
    import_module(f"{SERVICES}.names.__main__").main()


def analytics() -> None:
    """Run a job of lag analytics."""
    import_module(f"{SERVICES.removesuffix('services')}analytics.main").main()
