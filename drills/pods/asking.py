"""Execute a probe or a hook: over HTTP, by connecting, or by running a command in the container.

The kubelet is on the pod's node, so it reaches the pod despite policies and cuts. Therefore the
connection is opened in the pod's network namespace, to the pod's address: a service that listens
only on 127.0.0.1 is not reached, as on a real node.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, NamedTuple

from drills.namespaces import run_in
from drills.pods.containers import ContainerProcess
from drills.pods.plans import Exec, Handler, HttpGet, TcpSocket

BODY_SHOWN: Final = 300
ANSWER_MAX: Final = 10_240


class Reply(NamedTuple):
    succeeded: bool
    output: str


async def ask(
    handler: Handler, network: int, address: str, process: ContainerProcess, timeout_s: float
) -> Reply:
    """Execute a handler once. network: descriptor of the pod's network namespace."""
    try:
        async with asyncio.timeout(timeout_s):
            match handler:
                case HttpGet(port, path, host, headers):
                    return await _get(network, host or address, port, path, headers)
                case TcpSocket(port):
                    (await _connect(network, address, port)).close()
                    return Reply(True, "connected")
                case Exec(command):
                    ended = await process.run(command, timeout_s)
                    return Reply(ended.status == 0, ended.output.strip() or f"{ended.status}")
    except TimeoutError:
        return Reply(False, f"no answer within {timeout_s:g} s")
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        return Reply(False, str(error))
    return Reply(False, f"{handler} cannot be asked")


async def _get(
    network: int, host: str, port: int, path: str, headers: tuple[tuple[str, str], ...]
) -> Reply:
    reader, writer = await asyncio.open_connection(sock=await _connect(network, host, port))
    try:
        more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: kube-probe\r\n"
            f"Connection: close\r\n{more}\r\n".encode()
        )
        await writer.drain()
        answer = await reader.read(ANSWER_MAX)
        while len(answer) < ANSWER_MAX and (more_bytes := await reader.read(ANSWER_MAX)):
            answer += more_bytes
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.") else 0
    text = body.decode("utf-8", "replace").strip()[:BODY_SHOWN]
    return Reply(200 <= status < 400, f"{status} {text}")


async def _connect(network: int, host: str, port: int) -> socket.socket:
    made = run_in(network, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (host, port))
    except BaseException:
        made.close()
        raise
    return made
