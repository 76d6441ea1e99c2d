"""``tidemark cluster hand-over``: before this node is stopped, another one becomes master.

Asked of this node's own ha, over its socket in the run directory, for whoever stops the processes
of a node one by one: each may ask, at the same time and again. It ends when this node is not the
master and another one is, when there is nothing to hand over, or when the time is up. Whatever the
answer, the processes may then be stopped: a master that could not hand over is replaced when its
lease has run out. Step after: SIGTERM.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from shared.runtime.doorbell import socket_path
from tidemark.cli.cluster_calls import SOCKET_NAME
from tidemark.errors import NotServing, TidemarkError

PAUSE_S: Final = 0.2
"""Between two questions: a switch takes less than a second."""
REFUSED_PAUSE_S: Final = 1.0
"""After a refusal: a slave that catches up needs a while, and ha says each switch in its log."""
NOT_SERVING: Final = NotServing.code


class HandOverFailed(TidemarkError):
    """The time is up and this node is master still, or it is not known whether."""

    code, title, status = "not-handed-over", "Nobody has taken over from this node", 503


class Said(NamedTuple):
    """What ha answered to the order to switch over."""

    status: int
    body: Mapping[str, Any]


class Next(NamedTuple):
    """What follows from an answer."""

    done: Mapping[str, object] | None
    """The result; None: ask again."""
    why: str = ""
    """Why it is not done yet."""
    pause_s: float = PAUSE_S


def judge(said: Said | None) -> Next:
    """What follows from one answer; None: nobody listens on the socket. Pure."""
    if said is None:
        return Next({"handed_over": False, "because": "no ha runs on this node"})
    body = said.body
    if said.status == HTTPStatus.OK:
        return Next({"handed_over": True, "master": body.get("master"), "epoch": body.get("epoch")})
    detail = str(body.get("detail") or f"ha answered {said.status}.")
    if body.get("code") == NOT_SERVING:
        return Next({"handed_over": False, "because": detail})
    if "master" in body:  # the one refusal that names it: this node is not the master
        if body["master"] is None:
            return Next(None, "this node is not the master, and no other one is yet.")
        return Next({"handed_over": False, "because": "another is", "master": body["master"]})
    return Next(None, detail, REFUSED_PAUSE_S)


async def hand_over(run_dir: Path, timeout_s: float) -> Mapping[str, object]:
    """Have another node become master. Raises HandOverFailed, PathTooLong.

    run_dir: of the services of this node. timeout_s: of everything.
    """
    path = socket_path(run_dir, SOCKET_NAME)
    ends_at = time.monotonic() + timeout_s
    why = "ha did not answer."
    while (left_s := ends_at - time.monotonic()) > 0:
        try:
            said = await _order(path, left_s)
        except TimeoutError:
            break
        after = judge(said)
        if after.done is not None:
            return after.done
        why = after.why
        await asyncio.sleep(min(after.pause_s, max(0.0, ends_at - time.monotonic())))
    raise HandOverFailed(
        f"after {timeout_s:g} s: {why}",
        "The node may be stopped all the same: nothing acknowledged as replicated is lost, and "
        "another member of the in-sync set takes over when the lease has run out.",
    )


async def _order(path: Path, timeout_s: float) -> Said | None:
    """One order to switch over; None if nobody listens. Raises TimeoutError."""
    connector = aiohttp.UnixConnector(str(path))
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession("http://ha", connector=connector, timeout=timeout) as session,
            session.post("/v1/cluster/switchover", json={}) as answer,
        ):
            body = await answer.json(content_type=None)
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, (FileNotFoundError, ConnectionRefusedError)):
            return None
        # More wait for it than it accepts at a time: it is there.
        return Said(HTTPStatus.BAD_GATEWAY, {"detail": f"ha's socket: {error.os_error}."})
    except (aiohttp.ClientError, ValueError) as error:
        # ha ended, or was ending, while it was asked: the next question finds out.
        return Said(HTTPStatus.BAD_GATEWAY, {"detail": f"ha's answer was cut short: {error!r}."})
    return Said(answer.status, body if isinstance(body, dict) else {})
