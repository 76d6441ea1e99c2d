"""A broker on a disk that loses flushes: fdatasync does nothing. Only for tests of the tests.

``python -m tests.support.no_fdatasync`` takes the arguments of ``python -m services.broker``.
"""

from __future__ import annotations

import os
import runpy


def main() -> None:
    """Run the broker's own entry point with the one call missing."""
    os.fdatasync = lambda fd: None
    runpy.run_module("services.broker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
