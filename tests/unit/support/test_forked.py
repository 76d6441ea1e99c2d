"""Services that are forked from a process which has imported them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import forked


def test_several_threads_may_wait_for_one_process(tmp_path: Path) -> None:
    """The second one to reap it ended the parent, and with it every later start."""
    process = forked.start("services.reput", ["--no-such-option"], tmp_path / "log")
    assert process is not None
    with ThreadPoolExecutor(8) as threads:
        ends = list(threads.map(process.wait, [60.0] * 8))
    assert ends == [2] * 8
    assert process.poll() == 2
