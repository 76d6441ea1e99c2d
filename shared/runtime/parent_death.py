"""Functions for ``preexec_fn``: the kernel ends the child when its parent ends for any reason.

Otherwise a killed parent would leave services running that hold the locks of their store. The
kernel watches the thread that started the child: start it from a thread that lives as long.
"""

from __future__ import annotations

import ctypes
import signal
from typing import Final

# Loaded here, because a child should load nothing between fork and exec.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1


def kill_with_parent() -> None:
    """Make the kernel send SIGKILL to this process when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def stop_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
