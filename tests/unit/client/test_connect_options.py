"""Options of ``connect`` besides the address: callbacks, headers, an SSL context."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
from aiohttp import web

import tidemark
from tests.support import certificates
from tests.unit.client.fake_broker import FakeBroker, error, in_a_thread
from tidemark import Limits, errors


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(queues={"orders": [[]]}).serve() as serving:
        yield serving


async def _broken(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class Heard:
    """The arguments of the callbacks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.came = asyncio.Event()

    def connected(self, url: str) -> None:
        self.calls.append(("connected", url))
        self.came.set()

    def disconnected(self, url: str, error: errors.TidemarkError) -> None:
        self.calls.append((error.code, url))
        self.came.set()

    async def until(self, count: int) -> None:
        while len(self.calls) < count:
            self.came.clear()
            await self.came.wait()


async def test_callbacks_are_called_when_a_node_begins_and_ceases_to_answer(
    broker: FakeBroker,
) -> None:
    heard = Heard()
    async with (
        FakeBroker(queues={"orders": [[]]}).serve() as other,
        tidemark.connect(
            [broker.url, other.url],
            on_connected=heard.connected,
            on_disconnected=heard.disconnected,
        ) as mq,
    ):
        await mq.send("orders", b"1")
        await mq.send("orders", b"2")
        await heard.until(1)
        broker.faults = [_broken, _broken]
        await mq.send("orders", b"3")
        await heard.until(3)
    assert heard.calls[:3] == [
        ("connected", broker.url),
        ("unreachable", broker.url),
        ("connected", other.url),
    ]


async def test_a_refusal_is_an_answer_and_no_end_of_the_connection(broker: FakeBroker) -> None:
    async def refuses(_request: web.Request) -> web.Response:
        return error(400, "bad-request")

    heard = Heard()
    async with tidemark.connect(
        broker.url, on_connected=heard.connected, on_disconnected=heard.disconnected
    ) as mq:
        await mq.topics()
        broker.faults = [refuses]
        with pytest.raises(errors.BadRequest):
            await mq.send("orders", b"x")
        await mq.topics()
    assert heard.calls == [("connected", broker.url)]


async def test_a_callback_that_raises_is_reported_to_the_loop_and_ends_no_call(
    broker: FakeBroker,
) -> None:
    reported: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))

    def raises(_url: str) -> None:
        raise RuntimeError("the program's own mistake")

    async with tidemark.connect(broker.url, on_connected=raises) as mq:
        assert (await mq.send("orders", b"1")).level == "disk"
        await asyncio.sleep(0)
    assert [str(each) for each in reported] == ["the program's own mistake"]


async def test_headers_go_with_every_request(broker: FakeBroker) -> None:
    headers = {"Authorization": "Bearer a", "Content-Type": "text/plain"}
    async with tidemark.connect(broker.url, headers=headers, trace="t") as mq:
        await mq.send("orders", b"1")
    assert (broker.authorized, broker.traced) == (["Bearer a"], ["t"])


def test_the_sync_facade_takes_them_too() -> None:
    with in_a_thread(FakeBroker(queues={"orders": [[]]})) as broker:
        connected: list[str] = []
        with tidemark.connect_sync(
            broker.url,
            headers={"Authorization": "Bearer b"},
            request_timeout_s=20.0,
            on_connected=connected.append,
        ) as mq:
            mq.send("orders", b"1")
            mq.send("orders", b"2")
        assert (connected, broker.authorized) == ([broker.url], ["Bearer b"] * 2)


async def test_an_ssl_context_decides_which_servers_are_trusted(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "trusted")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(made.certificate, made.key)
    trusting = ssl.create_default_context(cafile=str(made.authority))
    trusting.check_hostname = False
    async with FakeBroker(queues={"orders": [[]]}).serve(context=serving) as broker:
        assert broker.url.startswith("https://")
        async with tidemark.connect(broker.url, ssl=trusting) as mq:
            assert (await mq.send("orders", b"1")).level == "disk"
        async with tidemark.connect(broker.url, retry_for_s=0) as mq:
            with pytest.raises(errors.Unreachable, match="certificate verify failed") as raised:
                await mq.send("orders", b"2")
        assert raised.value.facts["sent"] is False


@pytest.mark.parametrize("connect", [tidemark.connect, tidemark.connect_sync])
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"url": 5}, "url must be a string or a list of strings, not int"),
        ({"url": None}, "url must be a string or a list of strings, not NoneType"),
        ({"url": b"http://a:1"}, "url must be a string or a list of strings, not bytes"),
        ({"url": ["http://a:1", 5]}, r"url\[1\] must be a string, not int"),
        ({"linger_ms": "5"}, "linger_ms must be a number, not str"),
        ({"retry_for_s": None}, "retry_for_s must be a number, not NoneType"),
        ({"request_timeout_s": True}, "request_timeout_s must be a number, not bool"),
        ({"limits": 5}, r"limits must be tidemark.Limits\(…\), not int"),
        ({"limits": {"count_max": 5}}, r"limits must be tidemark.Limits\(…\), not dict"),
        ({"limits": Limits(count_max="5")}, "limits.count_max must be a whole number, not str"),  # type: ignore[arg-type]
        ({"limits": Limits(count_max=2.5)}, "limits.count_max must be a whole number, not float"),  # type: ignore[arg-type]
        ({"read_from": ["any"]}, "read_from must be a string, not list"),
        ({"trace": 5}, "trace must be a string, not int"),
        ({"headers": ["a"]}, "headers must be a map of strings, not list"),
        ({"headers": {"a": 5}}, r"headers\['a'\] must be a string, not int"),
        ({"headers": {5: "a"}}, "a name in headers must be a string, not int"),
        ({"ssl": False}, "ssl must be an ssl.SSLContext, not bool"),
        ({"on_connected": "x"}, "on_connected must be a function, not str"),
        ({"on_disconnected": 5}, "on_disconnected must be a function, not int"),
        ({"url": {5}}, r"url\[0\] must be a string, not int"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused_by_its_name(
    connect: Any, wrong: dict[str, Any], sentence: str
) -> None:
    # Some raised what Python said within the client, as that an int has no attribute _replace;
    # others were accepted, and the first call failed or a callback was never called.
    with pytest.raises(TypeError, match=f"^{sentence}$"):
        connect(**wrong)


class Waits:
    """A class whose instances are coroutine functions by another name."""

    async def __call__(self, *_: object) -> None: ...


@pytest.mark.parametrize("name", ["on_connected", "on_disconnected"])
@pytest.mark.parametrize("callback", [Waits(), Waits().__call__, functools.partial(Waits.__call__)])
def test_a_callback_that_would_never_be_awaited_is_refused(name: str, callback: Any) -> None:
    # A partial function raised AttributeError: it has no name. An object was accepted.
    options: dict[str, Any] = {name: callback}
    with pytest.raises(TypeError, match=f"^{name} must be a plain function, not a coroutine"):
        tidemark.connect(**options)


def test_numbers_of_other_libraries_are_numbers() -> None:
    # For example of NumPy: they were refused with "must be a number, not int64".
    limits = tidemark.Limits(count_max=numpy.int64(5), linger_ms=numpy.float32(1))  # type: ignore[arg-type]
    tidemark.connect(linger_ms=numpy.int64(5), retry_for_s=numpy.float32(5), limits=limits)  # type: ignore[arg-type]
    tidemark.connect(retry_for_s=Fraction(1, 2), on_connected=functools.partial(print))  # type: ignore[arg-type]
