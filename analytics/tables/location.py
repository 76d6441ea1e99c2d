"""Where tables are: a directory of this machine, or a URI of an object store or of HDFS.

Logins come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` …) or from the
machine's role, never from the URI.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyarrow.fs import FileSelector, FileSystem, FileType

from analytics.errors import FileUnusable

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""One slash is enough, because Path keeps only one of a URI. A drive letter is not a scheme."""
_HADOOP_NAMES: Final = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True, slots=True)
class Location:
    """A directory, by an absolute path or a URI. Picklable."""

    uri: str

    @classmethod
    def of(cls, given: str | Path) -> Location:
        """Return the location of a path or URI. Hadoop's ``s3a://`` is the same as ``s3://``."""
        text = os.fspath(given)
        scheme = _SCHEME.match(text)
        if scheme is None:
            return cls(str(Path(text).absolute()))
        name = scheme[1].lower()
        if name == "file":
            return cls("/" + text[scheme.end() :].strip("/"))
        return cls(f"{_HADOOP_NAMES.get(name, name)}://{text[scheme.end() :].strip('/')}")

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine, as far as the name says."""
        return self.uri.startswith("/")

    @property
    def for_spark(self) -> str:
        """The same directory as Spark names it."""
        return self.uri.replace("s3://", "s3a://", 1)

    def child(self, name: str) -> str:
        """Return the URI or path of a file or directory below it."""
        return f"{self.uri}/{name}"

    def put(self, name: str, fill: Callable[[BinaryIO], object]) -> int:
        """Write a file that exists whole or not at all, and return its size [bytes].

        fill: writes the content. A local file also survives a power failure.
        """
        if self.is_local:
            return write_whole(Path(self.child(name)), fill)
        store, path = self._store()
        with store.open_output_stream(f"{path}/{name}") as out:
            fill(out)
            size = out.tell()
        return int(size)

    def open(self, name: str) -> Any:
        """Open a file to read it anywhere. Raises FileNotFoundError; FileUnusable if the store does
        not answer or refuses."""
        if self.is_local:
            return Path(self.child(name)).open("rb")
        try:
            store, path = self._store()
            return store.open_input_file(f"{path}/{name}")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FileUnusable(self.child(name), str(error)) from error

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        try:
            with self.open(name) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileUnusable(self.child(name), str(error)) from error

    def names(self, directory: str) -> Iterator[str]:
        """Names of all files below a directory, relative to this location; none if it is
        missing."""
        if self.is_local:
            root = Path(self.uri)
            for file in sorted((root / directory).rglob("*")):
                if file.is_file():
                    yield file.relative_to(root).as_posix()
            return
        store, path = self._store()
        below = FileSelector(f"{path}/{directory}", allow_not_found=True, recursive=True)
        for found in store.get_file_info(below):
            if found.type == FileType.File:
                yield found.path.removeprefix(f"{path}/")

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        if self.is_local:
            Path(self.child(name)).unlink(missing_ok=True)
        else:
            store, path = self._store()
            store.delete_file(f"{path}/{name}")

    def _store(self) -> tuple[FileSystem, str]:
        """Return the file system and the path in it. Raises OSError if there is no such store."""
        store, path = FileSystem.from_uri(self.uri)
        return store, path


def write_whole(path: Path, fill: Callable[[BinaryIO], object]) -> int:
    """Write a local file that exists whole or not at all, even after a power failure; return its
    size [bytes].
    fill: writes the content. Missing parent directories are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as out:
            fill(out)
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    sync(path.parent)
    return size


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
