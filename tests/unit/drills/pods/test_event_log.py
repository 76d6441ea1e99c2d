from __future__ import annotations

from pathlib import Path

from drills.pods.event_log import EventLog
from drills.pods.kubelet import Event


def test_what_repeats_is_one_line_and_a_number(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    log = EventLog(path.open("w"), began=100.0)

    def note(at: float, pod: str, message: str) -> None:
        log.note(Event(at, pod, "ha", "Unhealthy", message))

    note(101.0, "a", "refused")
    note(102.0, "b", "refused")
    for second in range(3):
        note(103.0 + second, "a", "refused")
    assert path.read_text().count("\n") == 2, "written at once, and once"
    note(107.0, "a", "503")
    note(108.0, "b", "refused")
    log.close()
    assert path.read_text().splitlines() == [
        "    1.00 a ha Unhealthy refused",
        "    2.00 b ha Unhealthy refused",
        "    5.00 a ha Unhealthy the same, 3 more times",
        "    7.00 a ha Unhealthy 503",
        "    8.00 b ha Unhealthy the same, 1 more times",
    ]
