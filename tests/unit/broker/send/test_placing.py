"""Topics and queues of the messages of one request of which some are delayed."""

from __future__ import annotations

import pytest

from services.broker.send.placing import Placed, place
from services.broker.send.wanted_delay import Delay
from tidemark.errors import DelayOutOfRange
from tidemark.formats import batch, delay
from tidemark.formats.batch import WireMessage
from tidemark.formats.delay import DELAY_MS_MAX, Place

NOW_MS = 1_800_000_000_000
LEVELS_MS = (1000, 5000)


def placed(delays: list[Delay | None], queues: list[int] | None = None) -> Placed:
    entries = batch.encode(
        WireMessage(b"body %d" % index, b"n\x01%d\x02" % index) for index in range(len(delays))
    )
    return place(
        "orders", entries, queues or [0] * len(delays), delays, levels_ms=LEVELS_MS, now_ms=NOW_MS
    )


def test_every_message_keeps_its_body_and_the_queue_it_is_for() -> None:
    found = placed([Delay(level=1), Delay(level=1)], [3, 0])
    (share,) = found.shares
    messages = list(batch.iterate(share.entries))
    assert [bytes(message.body) for message in messages] == [b"body 0", b"body 1"]
    places = [delay.real_place(bytes(message.properties)) for message in messages]
    assert places == [Place("orders", 3), Place("orders", 0)]


@pytest.mark.parametrize(
    "wanted", [Delay(after_ms=0), Delay(at_ms=0), Delay(at_ms=NOW_MS), Delay(at_ms=NOW_MS - 1)]
)
def test_a_time_that_is_not_in_the_future_makes_an_ordinary_message(wanted: Delay) -> None:
    found = placed([wanted])
    assert found.shares[0][:2] == ("orders", 0)
    assert found.waits == [None]


def test_a_time_may_be_so_far_ahead_and_no_further() -> None:
    placed([Delay(at_ms=NOW_MS + DELAY_MS_MAX)])
    with pytest.raises(DelayOutOfRange) as caught:
        placed([None, Delay(at_ms=NOW_MS + DELAY_MS_MAX + 1)])
    assert caught.value.field == "messages[1].deliver_at_ms"
