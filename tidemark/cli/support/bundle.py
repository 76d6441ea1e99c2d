"""The archive under construction: files in memory, with limits, and a list of omissions.

Each collector adds its data or the reason for their absence; the failure of one does not affect the
others. The archive is written in one step at the end, so that no partial archive is left.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from tidemark.cli.support.redact import without
from tidemark.cli.threads import run_all

SIZE_MAX: Final = 64 << 20
"""Maximum total size of the files in bytes, before compression."""
FILE_SIZE_MAX: Final = 8 << 20
COLLECT_S: Final = 40.0
"""The slowest collector is the doctor: two rounds of checks of ten seconds, after the settings."""
ALWAYS_LEFT_OUT: Final = {
    "message bodies": "nothing of the commit log is read",
    "keys, tags and properties of messages": "they are the users' data",
    "secrets": "files named in settings are not copied, and their contents are removed from all "
    "other files",
    "consume queues and index": "their sizes and times are in store/files.jsonl",
    "config/*.json": "names of topics and groups are in the metrics, and so are offsets",
}


class LeftOut(NamedTuple):
    """Something that is not in the bundle, and the reason."""

    what: str
    why: str


class Bundle:
    """Files by name. Several threads may add files; additions after ``close`` are dropped."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._left_out = [LeftOut(what, why) for what, why in ALWAYS_LEFT_OUT.items()]
        self._size = 0
        self._closed = False
        self._lock = threading.Lock()

    def add(self, name: str, data: bytes) -> None:
        """Add a file. It is truncated if it exceeds the limit of a file, and left out if it would
        exceed that of the bundle."""
        with self._lock:
            if self._closed:
                return
            if len(data) > FILE_SIZE_MAX:
                self._left_out.append(
                    LeftOut(f"the rest of {name}", f"{len(data)} bytes; {FILE_SIZE_MAX} are kept")
                )
                data = data[: data.rfind(b"\n", 0, FILE_SIZE_MAX) + 1 or FILE_SIZE_MAX]
            if self._size + len(data) > SIZE_MAX:
                self._left_out.append(LeftOut(name, f"the bundle would exceed {SIZE_MAX} bytes"))
                return
            self._files[name] = data
            self._size += len(data)

    def add_text(self, name: str, text: str) -> None:
        """Add a text file."""
        self.add(name, text.encode("utf-8", "replace"))

    def add_json(self, name: str, value: object) -> None:
        """Add a value as indented JSON."""
        text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
        self.add_text(name, text + "\n")

    def leave_out(self, what: str, why: str) -> None:
        """Record an omission and its reason."""
        with self._lock:
            if not self._closed:
                self._left_out.append(LeftOut(what, why))

    def collect(self, collectors: Mapping[str, Callable[[], None]]) -> None:
        """Run all collectors in parallel, each for at most ``COLLECT_S``; failures are recorded."""

        def run(name: str, work: Callable[[], None]) -> None:
            try:
                work()
            except (OSError, ValueError) as error:
                self.leave_out(name, f"{type(error).__name__}: {error}")

        works = {name: partial(run, name, work) for name, work in collectors.items()}
        for name in run_all(works, COLLECT_S):
            self.leave_out(name, f"it took longer than {COLLECT_S:.0f} s")

    def close(self, secrets: Iterable[bytes], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the secrets from every file, add the manifest, and return it."""
        known = list(secrets)
        with self._lock:
            self._closed = True
            for name, data in self._files.items():
                clean, count = without(data, known)
                if count:
                    self._files[name] = clean
                    self._left_out.append(LeftOut(f"a secret in {name}", f"found {count} times"))
            manifest = {
                **facts,
                "files": {name: len(data) for name, data in sorted(self._files.items())},
                "left_out": [each._asdict() for each in self._left_out],
            }
            text = json.dumps(manifest, indent=1, ensure_ascii=False, default=str) + "\n"
            self._files["manifest.json"] = without(text.encode(), known)[0]
        return manifest

    def archive(self, directory: str, mtime: float) -> bytes:
        """Return the .tar.gz with all files in one directory. mtime: modification time of each
        file, in seconds."""
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=int(mtime)) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archive,
        ):
            for name, data in sorted(self._files.items()):
                entry = tarfile.TarInfo(f"{directory}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(mtime)
                archive.addfile(entry, io.BytesIO(data))
        return packed.getvalue()
