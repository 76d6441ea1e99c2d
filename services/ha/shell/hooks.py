"""Named places between two steps, at which a test may stop, kill or delay this process.

Hand-over, cut and resync guarantee a state on disk if the process ends *between* two of their
steps. A test installs a function for these places; without one a place costs one comparison. Names:
``promote-4`` … of becoming master, ``cut-6`` … ``cut-10`` of a cut, ``resync-1`` … of a resync
(docs/replication.md numbers them). One hook per process.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def install(hook: Callable[[str], None] | None) -> None:
    """Call hook(name) before every named step from now on; None: nothing."""
    global _hook
    _hook = hook


def before(step: str) -> None:
    """Call the hook before a step. Everything before it is done, and durable if required."""
    if _hook is not None:
        _hook(step)
