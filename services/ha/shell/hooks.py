"""Named places between two steps at which a test may stop, kill or delay this process.

A hand-over, a cut and a resync are promises about what is on disk when the process ends *between*
two of their steps. A test installs what happens there; otherwise a place costs one comparison.
Names: ``promote-4`` … of becoming master, ``cut-6`` … ``cut-10`` of a cut, ``resync-1`` … of a
resync (docs/replication.md numbers them). One hook per process.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def install(hook: Callable[[str], None] | None) -> None:
    """Call hook(name) before every named step from now on; None: nothing."""
    global _hook
    _hook = hook


def before(step: str) -> None:
    """This step comes next; everything before it is done, and durable if it has to be."""
    if _hook is not None:
        _hook(step)
