"""HTTP calls to the current master: returns status, response and the node that answered.

Calls are not retried, because drills check what the client library would hide. The step before is
``finding``, which knows the master; the step after is ``workload``, which evaluates the response.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp
import msgpack

from drills.finding import Finder

MSGPACK: Final = "application/msgpack"
HEADERS: Final = {"Content-Type": MSGPACK, "Accept": MSGPACK}
CONNECT_TIMEOUT_S: Final = 0.5
PAUSE_S: Final = 0.05
NOT_MASTER: Final = 421


class MasterCalls:
    """HTTP session for calls to the master; use it as ``async with MasterCalls(…) as calls``."""

    def __init__(self, finder: Finder, answer_timeout_s: float) -> None:
        """answer_timeout_s: timeout of a call, because a node that was cut off does not answer."""
        self._finder, self._answer_timeout_s = finder, answer_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> MasterCalls:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers=HEADERS
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def call(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any], str]:
        """Call the master; return status, response and node.

        Status 0 means that there was no response.
        If no master is known, waits briefly and returns NOT_MASTER with the node "".
        """
        assert self._session is not None
        node = self._finder.master()
        if node is None or node not in self._finder.apis:
            await asyncio.sleep(PAUSE_S)
            return NOT_MASTER, {"code": "no-master", "retriable": True}, ""
        data = None if body is None else msgpack.packb(body)
        timeout = aiohttp.ClientTimeout(
            total=self._answer_timeout_s, sock_connect=CONNECT_TIMEOUT_S
        )
        try:
            async with self._session.request(
                method, self._finder.apis[node] + path, data=data, timeout=timeout
            ) as response:
                raw = await response.read()
                status = response.status
            answer = msgpack.unpackb(raw, strict_map_key=False) if raw else {}
        except aiohttp.ClientConnectorError:
            self._finder.hint(None)
            return 0, {"code": "not-connected", "retriable": True}, node
        except TimeoutError:
            self._finder.hint(None)
            return 0, {"code": "no-answer", "retriable": True}, node
        except (aiohttp.ClientError, OSError):
            self._finder.hint(None)
            return 0, {"code": "unreachable", "retriable": True}, node
        except (ValueError, msgpack.UnpackException):
            return 0, {"code": "broken-answer", "retriable": True}, node
        if status == NOT_MASTER:
            named = (answer.get("facts") or answer).get("master")
            self._finder.hint(named if isinstance(named, str) and named != node else None)
        return status, answer, node
