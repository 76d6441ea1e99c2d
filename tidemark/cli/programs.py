"""Console scripts for the command line, the services and analytics.

A script of an installed package names one module for all installations, while the services are
``services`` in the repository and ``tidemark.services`` in a wheel (docs/decisions/0034). This
module imports nothing of the command line, so that a service starts as fast as with ``python -m``.

The client is installed without the packages that programs need: they are extras of the
distribution. A program that lacks a package prints which extra to install.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from shared.runtime.programs import SERVICES

INTERRUPTED: Final = 130
MISSING_PACKAGE: Final = 2
"""Exit status, the same as for wrong settings: starting again does not help."""
_OURS: Final = frozenset({"tidemark", "services", "shared", "analytics"})


def tidemark() -> None:
    """Run the command line."""
    try:
        # The import takes half a second, during which Ctrl-C must not show a traceback.
        _run("tidemark.cli.main", "server")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def broker() -> None:
    """Run a broker."""
    _run(f"{SERVICES}.broker.__main__", "server")


def reput() -> None:
    """Run reput."""
    _run(f"{SERVICES}.reput.__main__", "server")


def ha() -> None:
    """Run ha."""
    _run(f"{SERVICES}.ha.__main__", "server")


def names() -> None:
    """Run a name service."""
    _run(f"{SERVICES}.names.__main__", "server")


def analytics() -> None:
    """Run a job of lag analytics."""
    _run(f"{SERVICES.removesuffix('services')}analytics.main", "analytics")


def _run(module: str, extra: str) -> None:
    """Run the module's ``main``. A missing package of the extra ends the program with one line."""
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise  # not an extra: the installation is broken
        print(
            f"tidemark: the package {error.name} is not installed: "
            f'run pip install "tidemark-mq[{extra}]"',
            file=sys.stderr,
        )
        sys.exit(MISSING_PACKAGE)
