"""Repeat a seed: ``.venv/bin/python -m tests.simulation.replication SEED [--fault NAME]``.

``--trace`` prints the events and effects of every replica; ``--count N`` runs N seeds from SEED on.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter

from tests.simulation.replication.planted import FAULTS
from tests.simulation.replication.run import SeedFailed, run_seed
from tests.simulation.replication.world import World


def main() -> int:
    """Run the seeds; the exit status is 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.replication", description=__doc__
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    planted = FAULTS[options.fault].plant if options.fault else contextlib.nullcontext
    faults = FAULTS[options.fault].faults if options.fault else ()
    started, kinds = time.monotonic(), Counter[str]()
    with planted():
        for seed in range(options.seed, options.seed + options.count):
            if options.trace:
                World(seed, write_trace=print, faults=faults).run()
                continue
            try:
                outcome = run_seed(seed, options.fault or "", faults)
            except SeedFailed as error:
                kinds[str(error).split(": ", 2)[1]] += 1
                print(error, flush=True)
                if options.count == 1:
                    raise
            else:
                if options.count == 1:
                    print(f"seed {seed}: {outcome}")
    print(f"{options.count} seeds, {kinds.total()} failed, {time.monotonic() - started:.1f} s")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
