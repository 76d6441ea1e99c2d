"""Console scripts that start a service or analytics: ``tidemark-broker``, ``tidemark-reput``, …

The scripts of an installed package name one module for all installations, while the services are
``services`` in the repository and ``tidemark.services`` in a wheel (docs/decisions/0034). Imports
nothing of the command line: a service starts as fast through its script as through ``python -m``.
"""

from __future__ import annotations

from importlib import import_module

from shared.runtime.programs import SERVICES


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
