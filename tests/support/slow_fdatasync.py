"""A broker on a slow disk: each fdatasync takes a second.

``python -m tests.support.slow_fdatasync`` takes the arguments of ``python -m services.broker``.
"""

from __future__ import annotations

import os
import runpy
import time
from typing import Final, Protocol

SLOW_S: Final = 1.0


class HasFileno(Protocol):
    """A file, as the call takes one."""

    def fileno(self) -> int:
        """Return the file's descriptor."""
        ...


def main() -> None:
    """Run the broker's own entry point with the one call slowed down."""
    fdatasync = os.fdatasync

    def slow(fd: int | HasFileno) -> None:
        time.sleep(SLOW_S)
        fdatasync(fd)

    os.fdatasync = slow
    runpy.run_module("services.broker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
