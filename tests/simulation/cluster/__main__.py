"""Repeat a seed: ``.venv/bin/python -m tests.simulation.cluster SEED [--fault NAME] [--large]``.

``--trace`` prints the faults as they begin; ``--count N`` plays N seeds from SEED on.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from tests.simulation.cluster.judge import Counts
from tests.simulation.cluster.plan import LARGE, SMALL, TINY, draw
from tests.simulation.cluster.planted import FAULTS
from tests.simulation.cluster.run import SeedFailed, run_seed
from tests.simulation.cluster.world import World


def main() -> int:
    """Play the seeds; the exit status is 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.cluster", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--large", action="store_true", help="64 broker groups, 10,000 clients")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    planted = FAULTS[options.fault].plant if options.fault else contextlib.nullcontext
    faults = FAULTS[options.fault].faults if options.fault else ()
    size = LARGE if options.large else TINY if options.fault else SMALL
    started, failed, total = time.monotonic(), 0, Counts()
    with planted():
        for seed in range(options.seed, options.seed + options.count):
            if options.trace:
                print(World(seed, draw(seed, size, faults), print).run())
                continue
            try:
                counts = run_seed(seed, size, options.fault or "", faults)
            except SeedFailed as error:
                failed += 1
                print(error, flush=True)
                if options.count == 1:
                    raise
            else:
                total = Counts(*map(sum, zip(total, counts, strict=True)))
    print(f"{options.count} seeds, {failed} failed, {time.monotonic() - started:.1f} s: {total}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
