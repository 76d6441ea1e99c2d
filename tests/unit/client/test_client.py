from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

import tidemark
from tests.unit.client.fake_broker import FakeBroker, Fault, error
from tidemark import NewMessage, errors
from tidemark.client.batching import Limits


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker().serve() as serving:
        serving.queues["orders"] = [[], []]
        yield serving


async def test_the_four_lines_of_the_readme_send_and_report_the_ack_level(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url) as mq:
        result = await mq.send("orders", b"hello", tags="new", keys=["order-1"])
    assert result.level == "disk"
    assert result.copies == 1
    assert (result.queue, result.queue_offset, result.physical_offset) == (0, 0, 0)
    (sent,) = broker.requests[0]["messages"]
    assert re.fullmatch("[0-9A-F]{32}", sent.pop("unique_id"))
    assert sent == {"body": b"hello", "tags": "new", "keys": ["order-1"]}


async def test_a_pulled_message_has_every_field_that_was_stored(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        sent = await mq.send(
            "orders", b"\x00\xff", tags="new", keys=["a", "b"], properties={"x": "ü"}, queue=1
        )
        pulled = await mq.pull("orders", 1, 0)
    (message,) = pulled.messages
    assert pulled.status == "FOUND"
    assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (1, 0, 1)
    assert message.body == b"\x00\xff"
    assert message.tags == "new"
    assert message.keys == ("a", "b")
    assert message.properties["x"] == "ü"
    assert message.message_id == sent.message_id
    assert message.queue == 1
    assert message.unique_id == message.properties["UNIQ_KEY"]
    assert message.born_host == "127.0.0.1:10911"


async def test_an_empty_pull_is_an_empty_list(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        pulled = await mq.pull("orders", 0, 0)
        beyond = await mq.pull("orders", 0, 7)
    assert pulled.messages == []
    assert beyond.messages == []


async def test_a_code_of_the_broker_becomes_its_error_class(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(errors.UnknownTopic) as caught:
            await mq.pull("missing", 0, 0)
    assert caught.value.detail == "What happened. What is safe."
    assert caught.value.advice == "What to do."


async def test_a_code_of_a_later_broker_is_still_a_tidemark_error(broker: FakeBroker) -> None:
    async def newer(_request: web.Request) -> web.Response:
        return error(418, "quota-exceeded", retriable=True, quota=5)

    broker.faults = [newer]
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(errors.TidemarkError) as caught:
            await mq.pull("orders", 0, 0)
    assert caught.value.code == "quota-exceeded"
    assert caught.value.retriable
    assert caught.value.quota == 5
    assert type(caught.value).__module__ == "answered"


async def test_an_error_that_takes_store_facts_can_be_answered_too(broker: FakeBroker) -> None:
    async def corrupt(_request: web.Request) -> web.Response:
        return error(500, "corrupt-record")

    broker.faults = [corrupt]
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(errors.CorruptRecord) as caught:
            await mq.pull("orders", 0, 0)
    assert "What happened" in str(caught.value)


async def test_another_server_on_the_port_is_reported_as_such(broker: FakeBroker) -> None:
    async def proxy(_request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>Bad gateway</html>")

    broker.faults = [proxy]
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(errors.BrokenAnswer, match="HTTP status 502"):
            await mq.pull("orders", 0, 0)


async def test_damaged_records_are_not_delivered(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        await mq.send("orders", b"hello", queue=0)
        stored = bytearray(broker.queues["orders"][0][0])
        stored[stored.index(b"hello")] ^= 1
        broker.queues["orders"][0][0] = bytes(stored)
        with pytest.raises(errors.BrokenAnswer, match="CRC"):
            await mq.pull("orders", 0, 0)
        assert broker.checked == [0]


async def test_a_damaged_record_is_read_again_so_that_the_broker_learns_of_it(
    broker: FakeBroker,
) -> None:
    broker.is_damaged = True
    async with tidemark.connect(broker.url) as mq:
        for body in (b"1", b"hello"):
            await mq.send("orders", body, queue=0)
        stored = bytearray(broker.queues["orders"][0][1])
        stored[stored.index(b"hello")] ^= 1
        broker.queues["orders"][0][1] = bytes(stored)
        assert len((await mq.pull("orders", 0, 0)).messages) == 1
        assert broker.checked == []
        with pytest.raises(errors.CorruptRecord, match="orders queue 0 at 1: "):
            await mq.pull("orders", 0, 1)
        assert broker.checked == [1]


async def test_messages_before_a_damaged_record_are_delivered_and_then_it_is_reported(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url) as mq:
        for body in (b"1", b"2", b"hello", b"3"):
            await mq.send("orders", body, queue=0, tags="new")
        stored = bytearray(broker.queues["orders"][0][2])
        stored[stored.index(b"hello")] ^= 1
        broker.queues["orders"][0][2] = bytes(stored)
        pulled = await mq.pull("orders", 0, 0)
        assert [each.body for each in pulled.messages] == [b"1", b"2"]
        assert pulled.next_offset == 2
        assert (await mq.pull("orders", 0, 0, tags="old")).next_offset == 2
        read: list[bytes] = []

        async def read_all() -> None:
            async for message in mq.read("orders", 0):
                read.append(message.body)

        with pytest.raises(errors.BrokenAnswer, match=r"orders queue 0 at 2: .*CRC"):
            await read_all()
        assert read == [b"1", b"2"]
        assert (await mq.pull("orders", 0, 3)).messages[0].body == b"3"


async def test_reads_go_on_through_a_connection_that_breaks(broker: FakeBroker) -> None:
    broker.faults = [_broken, _broken]
    async with tidemark.connect(broker.url) as mq:
        assert (await mq.pull("orders", 0, 0)).messages == []
    assert broker.faults == []


async def _broken(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def _late(_request: web.Request) -> web.Response:
    return error(504, "ack-timeout", retriable=True)


async def _silent(_request: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError("the client has gone")


@pytest.mark.parametrize("fault", [_broken, _late])
async def test_a_send_of_unknown_outcome_is_repeated_with_the_same_id_and_says_so(
    broker: FakeBroker, fault: Fault
) -> None:
    broker.faults = [fault, fault]
    async with tidemark.connect(broker.url) as mq:
        await mq.send("orders", b"once")
    first, second, third = broker.requests
    assert first["messages"] == second["messages"] == third["messages"]
    assert [request.get("retry") for request in broker.requests] == [None, True, True]


async def test_a_send_that_was_never_stored_is_repeated_as_a_first_one(broker: FakeBroker) -> None:
    async def recovering(_request: web.Request) -> web.Response:
        return error(503, "not-serving", retriable=True)

    broker.faults = [recovering]
    async with tidemark.connect(broker.url) as mq:
        await mq.send("orders", b"once")
    assert ["retry" in request for request in broker.requests] == [False, False]


@pytest.mark.parametrize(
    ("fault", "kind"), [(_broken, errors.Unreachable), (_late, errors.AckTimeout)]
)
async def test_without_retries_a_send_of_unknown_outcome_is_raised(
    broker: FakeBroker, fault: Fault, kind: type[errors.TidemarkError]
) -> None:
    broker.faults = [fault]
    async with tidemark.connect(broker.url, retry_for_s=0) as mq:
        with pytest.raises(kind):
            await mq.send("orders", b"once")
    (request,) = broker.requests
    assert "unique_id" not in request["messages"][0]


async def test_the_master_is_followed_and_found_again_when_it_is_lost(broker: FakeBroker) -> None:
    async def is_slave(_request: web.Request) -> web.Response:
        return error(421, "not-master", retriable=True, master="n1", api=broker.url)

    async with FakeBroker().serve() as slave, FakeBroker().serve() as successor:
        slave.faults = [is_slave]
        successor.queues["orders"] = [[]]
        broker.cluster = [broker.url, slave.url, successor.url]
        async with tidemark.connect([slave.url]) as mq:
            await mq.send("orders", b"1")
            assert (len(slave.requests), len(broker.requests)) == (1, 1)
            await mq.send("orders", b"2")
            assert (len(slave.requests), len(broker.requests)) == (1, 2)

            async def names_the_successor(_request: web.Request) -> web.Response:
                return error(421, "not-master", retriable=True, master="n2", api=successor.url)

            async def knows_none(_request: web.Request) -> web.Response:
                return error(421, "not-master", retriable=True, master=None, api=None)

            # The master is gone in the middle of a request; the others need a moment.
            broker.faults = [_broken]
            slave.faults = [knows_none, names_the_successor]
            successor.faults = [knows_none]
            await mq.send("orders", b"3")
    (stored,) = successor.requests[-1]["messages"]
    assert (stored["body"], successor.requests[-1]["retry"]) == (b"3", True)


async def test_a_message_that_may_be_stored_is_not_reported_as_unsent(broker: FakeBroker) -> None:
    async def refuses(_request: web.Request) -> web.Response:
        return error(400, "bad-request")

    # 1. The answer to a send is lost. 2. A repetition is refused, which says nothing of the first.
    broker.faults = [_broken, refuses]
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(errors.Unreachable, match="outcome is unknown") as raised:
            await mq.send("orders", b"once")
    assert raised.value.facts["sent"] is True
    assert "The last attempt to repeat it failed" in raised.value.__notes__[0]


# 1. The broker reports that a message is stored and has not its level yet; 2. the client waits for
# the level again, until the call's time is over. The error was that the message may be stored.
async def test_a_message_that_is_stored_is_not_reported_as_of_unknown_outcome(
    broker: FakeBroker,
) -> None:
    broker.faults = [_late, _silent]
    async with tidemark.connect(broker.url, request_timeout_s=0.5) as mq:
        with pytest.raises(errors.AckTimeout) as raised:
            await mq.send("orders", b"once")
    assert "The last attempt to repeat it failed" in raised.value.__notes__[0]


async def test_a_node_that_is_being_promoted_is_asked_again(broker: FakeBroker) -> None:
    async def rises(_request: web.Request) -> web.Response:
        return error(503, "not-serving", retriable=True, state="promoting")

    async with FakeBroker().serve() as other:
        broker.faults = [rises, rises]
        async with tidemark.connect([broker.url, other.url]) as mq:
            await mq.send("orders", b"1")
    assert (len(broker.requests), len(other.requests)) == (3, 0)


async def test_plain_reads_use_a_slave_if_configured_and_fall_back(broker: FakeBroker) -> None:
    async with FakeBroker(queues={"orders": [[]]}).serve() as slave:
        urls = [broker.url, slave.url]
        broker.cluster = slave.cluster = urls
        broker.cluster_master = slave.cluster_master = broker.url
        async with tidemark.connect(urls, read_from="any") as mq:
            await mq.send("orders", b"1")
            async with asyncio.timeout(10.0):
                while slave.pulls == 0:  # until it has heard who is the master
                    await mq.pull("orders", 0, 0)
            at_master = broker.pulls
            await mq.pull("orders", 0, 0)
            assert (slave.pulls, broker.pulls) == (2, at_master)
            assert slave.read_from == ["any", "any"]
            slave.faults = [
                _broken,
                _broken,
            ]  # the transport itself tries a reused connection again
            assert [each.body for each in (await mq.pull("orders", 0, 0)).messages] == [b"1"]
            assert len(slave.requests) == 0
    with pytest.raises(ValueError, match="read_from must be master or any"):
        tidemark.connect(broker.url, read_from="nearest")  # type: ignore[arg-type]


async def test_every_request_of_a_traced_client_carries_the_trace_id(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url, trace="order-4711_a.b") as mq:
        await mq.send("orders", b"1")
        await mq.pull("orders", 0, 0)
    async with tidemark.connect(broker.url) as mq:
        await mq.send("orders", b"2")
    assert broker.traced == ["order-4711_a.b", "order-4711_a.b", None]


@pytest.mark.parametrize("trace", ["", "two words", "x" * 65, "größe", "a\n"])
def test_a_trace_id_that_brokers_would_ignore_is_refused(broker: FakeBroker, trace: str) -> None:
    with pytest.raises(ValueError, match="trace has 1 to 64 characters"):
        tidemark.connect(broker.url, trace=trace)


async def test_without_retries_the_first_failure_is_raised(broker: FakeBroker) -> None:
    async def recovering(_request: web.Request) -> web.Response:
        return error(503, "not-serving", retriable=True)

    broker.faults = [recovering]
    async with tidemark.connect(broker.url, retry_for_s=0) as mq:
        with pytest.raises(errors.NotServing):
            await mq.send("orders", b"once")


async def test_the_client_finds_a_broker_that_starts_later_on_the_same_port(
    unused_tcp_port: int,
) -> None:
    broker = FakeBroker(queues={"orders": [[]]})
    async with tidemark.connect(f"http://127.0.0.1:{unused_tcp_port}") as mq:
        sending = asyncio.create_task(mq.send("orders", b"early"))
        await asyncio.sleep(0.05)
        assert not sending.done()
        async with broker.serve(port=unused_tcp_port):
            assert (await sending).queue_offset == 0
        # And the same client after a restart of the broker.
        async with broker.serve(port=unused_tcp_port):
            assert (await mq.send("orders", b"again")).queue_offset == 1


async def test_an_unreachable_broker_is_reported_with_its_address(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with tidemark.connect(url, retry_for_s=0) as mq:
        with pytest.raises(errors.Unreachable, match=url) as caught:
            await mq.send("orders", b"x")
    assert not caught.value.sent


async def test_sends_at_once_share_requests_and_keep_their_order(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        results = await asyncio.gather(
            *(mq.send("orders", b"%d" % number, queue=0) for number in range(500))
        )
    assert [result.queue_offset for result in results] == list(range(500))
    assert len(broker.requests) < 10
    assert broker.in_flight_most == 1
    bodies = [wire["body"] for request in broker.requests for wire in request["messages"]]
    assert bodies == [b"%d" % number for number in range(500)]


async def test_a_bad_message_fails_alone_not_those_it_shared_a_request_with(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url) as mq:
        outcomes = await asyncio.gather(
            *(mq.send("orders", body, queue=0) for body in (b"a", b"bad", b"b")),
            return_exceptions=True,
        )
    assert isinstance(outcomes[1], errors.BadProperty)
    assert [outcome for outcome in outcomes if isinstance(outcome, BaseException)] == [outcomes[1]]


async def test_a_slow_broker_makes_senders_wait_instead_of_filling_the_memory(
    broker: FakeBroker,
) -> None:
    broker.hold.clear()
    limits = Limits(count_max=1, waiting_size_max=3 * 1100)
    async with tidemark.connect(broker.url, limits=limits) as mq:
        sends = [asyncio.create_task(mq.send("orders", bytes(1000))) for _ in range(10)]
        await asyncio.sleep(0.1)
        assert mq.producer.unanswered_size <= limits.waiting_size_max
        broker.hold.set()
        assert len(await asyncio.gather(*sends)) == 10
        assert mq.producer.unanswered_size == 0


async def test_a_cancelled_sender_leaves_the_others_alone(broker: FakeBroker) -> None:
    broker.hold.clear()
    async with tidemark.connect(broker.url) as mq:
        sends = [asyncio.create_task(mq.send("orders", b"%d" % n, queue=0)) for n in range(3)]
        await asyncio.sleep(0.05)
        sends[1].cancel()
        broker.hold.set()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert not isinstance(outcomes[0], BaseException)
    assert not isinstance(outcomes[2], BaseException)


async def test_senders_wait_for_room_in_their_order_and_one_that_gives_up_is_passed(
    broker: FakeBroker,
) -> None:
    broker.hold.clear()
    limits = Limits(waiting_size_max=2 * 1100)
    async with tidemark.connect(broker.url, limits=limits) as mq:
        sends = [
            asyncio.create_task(mq.send("orders", b"%d" % number + bytes(1000), queue=0))
            for number in range(6)
        ]
        await broker.until(lambda: len(broker.requests) == 1)
        sends[2].cancel()  # it waits for room
        sends[0].cancel()  # it is on its way, and makes room
        await asyncio.wait([sends[0], sends[2]])
        assert mq.producer.unanswered_size <= limits.waiting_size_max
        broker.hold.set()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert mq.producer.unanswered_size == 0
    given_up = [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes]
    assert given_up == [True, False, True, False, False, False]
    bodies = [wire["body"][:1] for request in broker.requests for wire in request["messages"]]
    assert bodies == [b"0", b"1", b"3", b"4", b"5"]


async def test_messages_for_different_queues_do_not_wait_for_each_other(
    broker: FakeBroker,
) -> None:
    broker.hold.clear()
    async with tidemark.connect(broker.url) as mq:
        sends = [
            asyncio.create_task(mq.send("orders", b"%d" % number, queue=number % 2))
            for number in range(6)
        ]
        await broker.until(lambda: broker.in_flight == 2)
        broker.hold.set()
        await asyncio.gather(*sends)
    queues = [{wire["queue"] for wire in request["messages"]} for request in broker.requests]
    assert sorted(queues, key=min) == [{0}, {1}]


async def test_leaving_sends_what_still_lingers(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url, linger_ms=3_600_000) as mq:
        sending = asyncio.create_task(mq.send("orders", b"1"))
        await asyncio.sleep(0)
    assert (await sending).queue_offset == 0


async def test_linger_collects_messages_that_come_one_after_another(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url, linger_ms=200) as mq:
        first = asyncio.create_task(mq.send("orders", b"1"))
        for _ in range(5):
            await asyncio.sleep(0)  # turns of the loop, after any of which it might have left
        second = asyncio.create_task(mq.send("orders", b"2"))
        await asyncio.gather(first, second)
    assert [len(request["messages"]) for request in broker.requests] == [2]


async def test_send_many_is_cut_into_requests_and_answers_for_every_message(
    broker: FakeBroker,
) -> None:
    limits = Limits(count_max=100)
    async with tidemark.connect(broker.url, limits=limits) as mq:
        results = await mq.send_many("orders", [b"%d" % n for n in range(250)], queue=1)
    assert [len(request["messages"]) for request in broker.requests] == [100, 100, 50]
    assert [result.queue_offset for result in results] == list(range(250))
    assert {result.queue for result in results} == {1}


async def test_send_many_of_nothing_is_nothing(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        assert await mq.send_many("orders", []) == []
    assert broker.requests == []


async def test_when_a_later_request_of_send_many_fails_the_error_says_what_was_stored(
    broker: FakeBroker,
) -> None:
    limits = Limits(count_max=2)
    messages = [NewMessage(b"a"), NewMessage(b"b"), NewMessage(b"bad")]
    async with tidemark.connect(broker.url, limits=limits) as mq:
        with pytest.raises(errors.BadProperty) as caught:
            await mq.send_many("orders", messages)
    assert len(caught.value.results) == 2


async def test_messages_that_send_many_stored_before_a_timeout_are_reported_too(
    broker: FakeBroker,
) -> None:
    async def late(_request: web.Request) -> web.Response:
        stored = {"message_id": "M", "queue": 3, "queue_offset": 7, "physical_offset": 9}
        return error(
            504,
            "ack-timeout",
            retriable=True,
            ack={"level": "memory", "copies": 1},
            results=[{**stored, "store_timestamp_ms": 1}],
        )

    broker.faults = [late]
    async with tidemark.connect(broker.url, retry_for_s=0) as mq:
        with pytest.raises(errors.AckTimeout) as caught:
            await mq.send_many("orders", [NewMessage(b"a")])
    (result,) = caught.value.results
    assert (result.queue, result.queue_offset, result.level) == (3, 7, "memory")


async def test_a_body_that_is_text_is_refused_before_anything_is_sent(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(TypeError, match="encode it first"):
            await mq.send("orders", "hello")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="list of strings"):
            await mq.send("orders", b"hello", keys="order-1")
    assert broker.requests == []


async def test_text_that_is_no_utf8_is_refused_before_anything_is_sent(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(errors.BadRequest, match="UTF-8"):
            await mq.send("orders", b"x", tags="\udcff")
        with pytest.raises(errors.BadName, match="UTF-8"):
            await mq.send("\udcff", b"x")
    assert broker.requests == []


async def test_a_topic_with_percent_signs_reaches_the_broker_as_it_is(broker: FakeBroker) -> None:
    broker.queues["%RETRY%billing"] = [[]]
    async with tidemark.connect(broker.url) as mq:
        await mq.send("%RETRY%billing", b"again")
    assert len(broker.queues["%RETRY%billing"][0]) == 1


async def test_reading_a_queue_yields_all_its_messages_in_order(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        await mq.send_many("orders", [b"%d" % n for n in range(2500)], queue=0)
        bodies = [message.body async for message in mq.read("orders", 0)]
        some = [message.body async for message in mq.read("orders", 0, 10, end=12)]
    assert bodies == [b"%d" % n for n in range(2500)]
    assert some == [b"10", b"11"]


async def test_while_messages_are_worked_on_the_next_pull_is_under_way_and_no_other(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url) as mq:
        await mq.send_many("orders", [b"%d" % n for n in range(5000)], queue=0)
        reading = mq.read("orders", 0)
        assert (await anext(reading)).body == b"0"
        await broker.until(lambda: broker.pulls == 2)
        await asyncio.sleep(0.05)
        assert broker.pulls == 2
        await reading.aclose()


async def test_an_error_of_a_prefetch_is_raised_after_earlier_messages(broker: FakeBroker) -> None:
    async def gone(_request: web.Request) -> web.Response:
        return error(404, "unknown-topic")

    async with tidemark.connect(broker.url) as mq:
        await mq.send_many("orders", [b"%d" % n for n in range(3000)], queue=0)
        reading = mq.read("orders", 0)
        await anext(reading)
        await broker.until(lambda: broker.pulls == 2)
        bodies = [b"0"]

        async def read_on() -> None:
            async for message in reading:
                bodies.append(message.body)

        # The second pull has been answered; what was asked for ahead of the third goes wrong.
        broker.faults = [gone]
        with pytest.raises(errors.UnknownTopic):
            await read_on()
    assert bodies == [b"%d" % n for n in range(2048)]


async def test_a_reader_that_is_cancelled_takes_its_pull_along(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        held = asyncio.Event()

        async def hold(_request: web.Request) -> web.Response:
            held.set()
            await asyncio.sleep(3600)
            return web.Response()

        async def read() -> None:
            async for _ in mq.read("orders", 0, follow=True):
                pass

        broker.faults = [hold]
        reading = asyncio.create_task(read())
        await held.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_following_yields_new_messages_and_stays_below_a_given_end(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url) as mq:
        await mq.send_many("orders", [b"0", b"1"], queue=0)
        reading = mq.read("orders", 0, follow=True)
        assert [(await anext(reading)).body for _ in range(2)] == [b"0", b"1"]
        await mq.send("orders", b"2", queue=0)
        assert (await anext(reading)).body == b"2"
        await reading.aclose()


async def test_topics_are_made_listed_shown_and_deleted(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url) as mq:
        made = await mq.create_topic("new", queues=3)
        assert (made.name, made.queues) == ("new", 3)
        assert [topic.name for topic in await mq.topics()] == ["new", "orders"]
        await mq.delete_topic("new")
        with pytest.raises(errors.UnknownTopic):
            await mq.topic("new")


async def test_every_call_of_a_closed_client_raises_closed(broker: FakeBroker) -> None:
    mq = tidemark.connect(broker.url)
    async with mq:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        await mq.send("orders", b"x")


def test_an_invalid_url_is_refused_at_once() -> None:
    for url in ("localhost:8080", "ftp://localhost", "http://"):
        with pytest.raises(ValueError, match="http://localhost:8080"):
            tidemark.connect(url)
