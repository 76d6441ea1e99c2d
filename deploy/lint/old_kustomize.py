"""Renders every overlay with an older kustomize: ``python -m deploy.lint.old_kustomize PROGRAM``.

Exits with 1 and names the overlay if the result differs from kubectl's. ``make old-kustomize``
builds the kustomize of kubectl 1.27, the oldest that the manifests support.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.lint.rendering import copied, overlays_of, render


def differing(program: Path) -> tuple[list[str], int]:
    """Return the overlays that it renders differently, and the number of all overlays."""
    with copied() as deploy:
        names = list(overlays_of(deploy))
        old = (str(program), "build")
        return [name for name in names if render(deploy, name, old) != render(deploy, name)], len(
            names
        )


def main() -> int:
    others, count = differing(Path(sys.argv[1]).resolve())
    for name in others:
        print(f"{name}: the older kustomize renders something else", file=sys.stderr)
    print(f"{count - len(others)} of {count} overlays are the same bytes")
    return 1 if others else 0


if __name__ == "__main__":
    raise SystemExit(main())
