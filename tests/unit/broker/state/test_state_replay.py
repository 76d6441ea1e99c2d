"""The state's queue as it is read at start: damage in a unit is named, never passed over."""

from __future__ import annotations

import pytest

from services.broker.state import state_replay
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.state.records import STATE_QUEUE, STATE_TOPIC
from tests.support.small_dispatch import dispatch_all, dispatcher_of
from tests.support.small_store import SmallStore
from tests.support.small_store import small as small
from tidemark.errors import CorruptRecord, DamagedFile
from tidemark.offsets import PhysicalOffset


@pytest.mark.parametrize("bit", range(0, 64, 5))
def test_a_flipped_bit_of_a_unit_leaves_no_state_record_out(small: SmallStore, bit: int) -> None:
    for _ in range(9):
        small.put(STATE_TOPIC, STATE_QUEUE)
    small.flush()
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    log = CommitLogReader(small.store, small.positions)

    def offsets() -> list[int]:
        queues = ConsumeQueues(small.store, log)
        end = PhysicalOffset(dispatcher.dispatched)
        found = state_replay.read(queues, log, 0, 9, end)
        return [each.queue_offset for each in found]

    assert offsets() == list(range(9))
    path = small.queue_file(STATE_TOPIC, STATE_QUEUE, 0)
    with path.open("r+b") as file:
        file.seek(3 * 20)
        unit = int.from_bytes(file.read(8), "big") ^ 1 << bit
        file.seek(3 * 20)
        file.write(unit.to_bytes(8, "big"))
    with pytest.raises((CorruptRecord, DamagedFile)) as caught:
        offsets()
    assert caught.value.facts["queue_offset"] == 3
