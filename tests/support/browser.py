"""Debian's Chromium without a window, used over its debugging port: a page as it is drawn.

Each page has its own width and colour scheme; its requests and console messages are noted.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

BROWSER: Final = "chromium"
START_WITHIN_S: Final = 60.0
ANSWER_WITHIN_S: Final = 60.0


def require_browser() -> str:
    """Return the browser's path. Without it the test is skipped, or fails if nothing may be
    skipped."""
    found = shutil.which(BROWSER)
    if found is None:
        reason = f"{BROWSER} is not installed: apt-get install {BROWSER}"
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Page:
    """One open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requested: list[str] = []
        """All requests, also failed ones."""
        self.said: list[str] = []
        """Errors on the console."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; events that come meanwhile are noted."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            found = await self._receive()
            if found.get("id") == number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result

    async def _receive(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._socket.receive_json(timeout=ANSWER_WITHIN_S)
        match found.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(found["params"]["request"]["url"])
            case "Runtime.exceptionThrown" | "Log.entryAdded":
                self.said.append(str(found["params"]))
        return found

    async def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page as wide as that [px], and wait until it has loaded."""
        self.requested.clear()
        self.said.clear()
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while (await self._receive()).get("method") != "Page.loadEventFired":
                pass

    async def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def picture(self, path: Path, *, height: int | None = None) -> None:
        """The whole page as PNG; height: its upper part only [px]."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(size["height"], height or size["height"]),
            "scale": 1,
        }
        found = await self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Page]:
    """A browser with one page; directory: for its profile."""
    process = await asyncio.create_subprocess_exec(
        require_browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--remote-debugging-port=0",
        f"--user-data-dir={directory}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(directory)},
    )
    assert process.stderr is not None
    drained: asyncio.Task[bytes] | None = None
    try:
        port = await _port(process.stderr)
        drained = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            address = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        if drained is not None:
            await drained


async def _port(said: asyncio.StreamReader) -> int:
    async with asyncio.timeout(START_WITHIN_S):
        while line := await said.readline():
            if b"DevTools listening on ws://" in line:
                return int(line.split(b"/devtools")[0].rsplit(b":", 1)[1])
    raise AssertionError("the browser ended before it listened")
