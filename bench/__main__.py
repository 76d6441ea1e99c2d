"""Run benchmarks one after another: ``python -m bench [NAME…] [--quick]``.

Each benchmark runs in its own process, so that it does not inherit memory, CPU pinning or an event
loop. The exit status is 1 if a goal is missed or a benchmark fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from bench.harness import NAMES, PROJECT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="short runs; writes no result")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; choose from: {', '.join(NAMES)}")
    failed: list[str] = []
    for name in given.names or NAMES:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", f"bench.{name}", *(["--quick"] if given.quick else [])]
        if subprocess.run(command, cwd=PROJECT, check=False).returncode != 0:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - began:.0f} s\n", flush=True)
    if failed:
        print(f"missed a goal or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
