"""``python -m tests.image``: build the image, run it, fail over, clean up. Status 1: not shown.

    make image-proof

Needs root and a few programs of Debian's, which it names; no registry of images. Images and
containers are removed at the end; what was downloaded stays in ``build/image``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.image import proof
from tests.image.base import archive_of_base, wheelhouse
from tests.image.engine import Engine, EngineFailed, missing
from tests.support.dockerfile import ROOT

IMAGE: Final = "tidemark:0.1.0"
BASE: Final = "debian-bookworm:debootstrap"


def run(directory: Path) -> None:
    """All steps, in their order. Raises NotShown, EngineFailed."""
    archive, wheels = archive_of_base(directory), wheelhouse(directory)
    with Engine(directory / "engine", "machine") as engine:
        engine.load(BASE, archive)
        proof.build(engine, IMAGE, BASE, wheels)
    with Engine(directory / "engine", "own") as engine:
        proof.contents(engine, IMAGE)
        proof.start(engine)
        proof.confinement(engine)
        proof.doctor(engine)
        proof.failover(engine)
        proof.stop(engine)


def main() -> int:
    """Run it, whatever happens clean up, say how it ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.image", description=__doc__)
    parser.add_argument("--directory", type=Path, default=ROOT / "build/image")
    parser.add_argument("--keep", action="store_true", help="leave images and containers there")
    asked = parser.parse_args()
    directory: Path = asked.directory
    if faults := missing():
        print("\n".join(["the image cannot be proved here:", *faults]), file=sys.stderr)
        return 1
    directory.mkdir(parents=True, exist_ok=True)
    try:
        run(directory)
    except (proof.NotShown, EngineFailed, subprocess.SubprocessError) as error:
        print(f"NOT SHOWN: {error}", file=sys.stderr)
        return 1
    finally:
        if not asked.keep:
            shutil.rmtree(directory / "engine", ignore_errors=True)
    print("the image is proved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
