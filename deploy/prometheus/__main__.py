"""``python -m deploy.prometheus``: write every generated file; with ``--check`` only compare.

With ``--cases DIR``: write the input of ``promtool test rules``. The exit status is 1 if a file
differs from the data.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.prometheus.generated import differing, write, write_cases


def main() -> int:
    """Write the files, or compare them and name those that differ."""
    if "--check" in sys.argv[1:]:
        wrong = differing()
        for path in wrong:
            print(f"{path} is not what `python -m deploy.prometheus` writes", file=sys.stderr)
        return 1 if wrong else 0
    paths = write_cases(Path(sys.argv[2])) if sys.argv[1:2] == ["--cases"] else write()
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
