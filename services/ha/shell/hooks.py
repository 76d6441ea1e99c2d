"""Named places between two steps, at which a test may stop, kill or delay this process.

Hand-over, cut and resync guarantee a state on disk if the process ends *between* two of their
steps. A test installs a function for these places; without one a place costs one comparison. Names:
``promote-2`` to ``-6`` and ``-10`` of becoming master (numbered in docs/replication.md; ``-7`` is
the grant), ``cut-6`` to ``-10`` of a cut and ``resync-1`` … of a resync (numbered in ``cutting``
and ``resync``). One hook per process.
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
