"""``tidemark cluster hand-over``: makes another node the master before this node is stopped.

It calls this node's own ha service over the socket in the run directory. Programs that stop the
processes of a node one by one may call it concurrently and repeatedly. It ends when another node is
the master, when there is nothing to hand over, or when the time is up. In all cases the processes
may then be stopped: if the hand-over failed, another node takes over when the lease expires. The
next step is SIGTERM.
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
"""Pause between two attempts: a switchover takes less than a second."""
REFUSED_PAUSE_S: Final = 1.0
"""Pause after a rejection: a slave needs time to catch up, and ha logs every switchover."""
NOT_SERVING: Final = NotServing.code


class HandOverFailed(TidemarkError):
    """The time is up and this node is still the master, or its role is not known."""

    code, title, status = "not-handed-over", "No node has taken over from this one", 503


class HaAnswer(NamedTuple):
    """The answer of ha to a switchover request."""

    status: int
    body: Mapping[str, Any]


class Next(NamedTuple):
    """The next step after an answer."""

    done: Mapping[str, object] | None
    """The final result; None: try again."""
    why: str = ""
    """Reason to try again."""
    pause_s: float = PAUSE_S


def judge(answer: HaAnswer | None) -> Next:
    """Decide the next step after an answer; None means that no process listens. Pure."""
    if answer is None:
        return Next({"handed_over": False, "because": "no ha runs on this node"})
    body = answer.body
    if answer.status == HTTPStatus.OK:
        return Next({"handed_over": True, "master": body.get("master"), "epoch": body.get("epoch")})
    detail = str(body.get("detail") or f"ha answered {answer.status}.")
    if body.get("code") == NOT_SERVING:
        return Next({"handed_over": False, "because": detail})
    if "master" in body:  # only the rejection by a node that is not the master has this field
        if body["master"] is None:
            return Next(None, "this node is not the master, and there is no other yet.")
        return Next({"handed_over": False, "because": "another is", "master": body["master"]})
    return Next(None, detail, REFUSED_PAUSE_S)


async def hand_over(run_dir: Path, timeout_s: float) -> Mapping[str, object]:
    """Let another node become master. Raises HandOverFailed, PathTooLong.

    run_dir: directory of this node's sockets. timeout_s: limit of the whole operation.
    """
    path = socket_path(run_dir, SOCKET_NAME)
    ends_at = time.monotonic() + timeout_s
    why = "ha did not answer."
    while (left_s := ends_at - time.monotonic()) > 0:
        try:
            answer = await _order(path, left_s)
        except TimeoutError:
            break
        after = judge(answer)
        if after.done is not None:
            return after.done
        why = after.why
        await asyncio.sleep(min(after.pause_s, max(0.0, ends_at - time.monotonic())))
    raise HandOverFailed(
        f"after {timeout_s:g} s: {why}",
        "The node may be stopped anyway: nothing acknowledged as replicated is lost, and another "
        "member of the in-sync set takes over when the lease expires.",
    )


async def _order(path: Path, timeout_s: float) -> HaAnswer | None:
    """Send one switchover request; None if no process listens. Raises TimeoutError."""
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
        # For example a full accept queue: the process exists.
        return HaAnswer(HTTPStatus.BAD_GATEWAY, {"detail": f"ha's socket: {error.os_error}."})
    except (aiohttp.ClientError, ValueError) as error:
        # ha ended during the call: the next attempt shows that it is gone.
        return HaAnswer(
            HTTPStatus.BAD_GATEWAY, {"detail": f"ha's answer was cut short: {error!r}."}
        )
    return HaAnswer(answer.status, body if isinstance(body, dict) else {})
