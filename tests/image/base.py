"""What a build takes from a registry elsewhere, made here: a Debian base and the wheels.

Both are kept in ``build/image`` for the next time. The base is Debian's own packages put together
by debootstrap, without what Debian's slim images leave out as well. The wheels are those of
requirements.lock; the build checks their hashes again.
"""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.dockerfile import ROOT

SUITE: Final = "bookworm"
LEFT_OUT: Final = (
    "./dev/*",
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./var/log/*",
    "./usr/share/doc/*",
    "./usr/share/info/*",
    "./usr/share/locale/*",
    "./usr/share/man/*",
)


def archive_of_base(directory: Path) -> Path:
    """A tar archive of a minimal Debian; made if it is not there."""
    archive = directory / f"{SUITE}.tar"
    if archive.exists():
        return archive
    tree = directory / SUITE
    subprocess.run(
        [
            *("debootstrap", "--variant=minbase", "--include=ca-certificates"),
            *(SUITE, str(tree)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=900,
    )
    left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    subprocess.run(
        ["tar", "-C", str(tree), *left_out, "-cf", str(archive.with_suffix(".part")), "."],
        check=True,
        timeout=300,
    )
    subprocess.run(["rm", "-rf", "--one-file-system", str(tree)], check=True, timeout=300)
    archive.with_suffix(".part").rename(archive)
    return archive


def wheelhouse(directory: Path) -> Path:
    """A directory with the wheels that the Dockerfile installs; a file that is there already, with
    the right hash, is not fetched again."""
    found = directory / "wheels"
    found.mkdir(parents=True, exist_ok=True)
    for what in (["build"], ["run", "k8s"]):
        pins = directory / f"{what[0]}.lock"
        with pins.open("wb") as file:
            script = ROOT / "deploy/docker/locked.py"
            subprocess.run([sys.executable, str(script), *what], check=True, stdout=file)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes"),
                *("--only-binary", ":all:", "--no-deps"),
                *("--dest", str(found), "--requirement", str(pins)),
            ],
            check=True,
            timeout=600,
        )
    return found


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """A server that logs no requests."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """A page of links to the files of a directory, on the loopback interface; yields its URL."""
    handler = functools.partial(_Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="wheels", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
