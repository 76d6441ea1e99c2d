"""``python -m deploy.dist``: builds both packages twice, compares them, installs and tries them.

SOURCE_DATE_EPOCH is the time of all files in the archives [seconds]. The packages that ours need
are installed from the registry of pip, by the hashes of requirements.lock.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy.dist.build import NotBuilt, built
from deploy.dist.trial import Failed, command_without_extra, first_message
from deploy.docker.locked import locked
from tidemark.testing.ports import free_ports

EXTRAS: Final = {"client": ["run"], "server": ["run", "server"]}
"""Environments by name, and what is installed in each (``deploy.docker.locked``)."""


def main() -> None:
    """Print each step and the hashes of the packages. The exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.dist")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="directory of the packages")
    out = parser.parse_args().out
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    with tempfile.TemporaryDirectory(prefix="tidemark-dist-") as name:
        directory = Path(name)
        try:
            print("1 of 3: building the packages, twice", flush=True)
            packages = built(out, directory / "build", epoch=epoch)
            again = built(directory / "again", directory / "rebuild", epoch=epoch)
            for package, same in zip(packages, again, strict=True):
                if package.read_bytes() != same.read_bytes():
                    raise NotBuilt(f"{package} and a second build of it differ")
            print("2 of 3: installing the wheel for a client alone and for a node", flush=True)
            for environment, extras in EXTRAS.items():
                _install(directory / environment, packages.wheel, extras)
            print("3 of 3: sending a message from one to the other", flush=True)
            store, [port, *_] = directory / "store", free_ports(3)
            server, client = directory / "server", directory / "client"
            print(asyncio.run(first_message(server, client, store=store, port=port)), end="")
            print(command_without_extra(client, "tidemark"), end="")
        except (NotBuilt, Failed, TimeoutError) as error:
            sys.exit(f"{type(error).__name__}: {error}")
    for package in packages:
        print(hashlib.sha256(package.read_bytes()).hexdigest(), f"{package.name}", sep="  ")


def _install(environment: Path, wheel: Path, extras: list[str]) -> None:
    environment.mkdir()
    lock = environment / "packages.lock"
    lock.write_text(locked(extras))
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--quiet"]
    for command in (
        [sys.executable, "-m", "venv", str(environment)],
        [*pip, "install", "--require-hashes", "--only-binary", ":all:", "-r", str(lock)],
        [*pip, "install", "--no-index", "--no-deps", str(wheel)],
        [*pip, "check"],  # nothing that the wheel needs is missing in the lock
    ):
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
