"""Every overlay by an older kustomize as well: ``python -m deploy.lint.old_kustomize PROGRAM``.

Exits 1 and names the overlay if it says anything but what kubectl's says. ``make old-kustomize``
builds that of kubectl 1.21, the oldest that the manifests promise.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.lint.rendering import copied, overlays_of, render


def differing(program: Path) -> tuple[list[str], int]:
    """Overlays that it renders otherwise, and how many there are."""
    with copied() as deploy:
        names = list(overlays_of(deploy))
        old = (str(program), "build")
        return [name for name in names if render(deploy, name, old) != render(deploy, name)], len(
            names
        )


def main() -> int:
    """Compare; see the module."""
    others, count = differing(Path(sys.argv[1]).resolve())
    for name in others:
        print(f"{name}: the older kustomize renders something else", file=sys.stderr)
    print(f"{count - len(others)} of {count} overlays are the same bytes")
    return 1 if others else 0


if __name__ == "__main__":
    raise SystemExit(main())
