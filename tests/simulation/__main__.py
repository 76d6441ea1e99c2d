"""Repeat one seed of the simulation: ``.venv/bin/python -m tests.simulation SEED [--fault NAME]``.

``--trace`` prints every operation of the disk; ``--count N`` runs N seeds from SEED on.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from tests.simulation.faults import FAULTS
from tests.simulation.run import Run, SeedFailed, run_seed


def main() -> int:
    """Run it; exit status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    planted = FAULTS[options.fault] if options.fault else contextlib.nullcontext
    started, failed = time.monotonic(), 0
    with planted():
        for seed in range(options.seed, options.seed + options.count):
            if options.trace:
                run = Run(seed)
                run.trace()
                run.run()
                continue
            try:
                outcome = run_seed(seed, options.fault or "")
            except SeedFailed as error:
                failed += 1
                print(error)
                if options.count == 1:
                    raise
            else:
                if options.count == 1:
                    print(f"seed {seed}: {outcome}")
    print(f"{options.count} seeds, {failed} failed, {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
