"""Tries installed packages: a client alone sends a first message to an installed node.

The environments are prepared by the caller; nothing of this repository is imported in them. The
step before is ``build``.
"""

from __future__ import annotations

import asyncio
import subprocess
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

START_S: Final = 60
CALL_S: Final = 60
CLIENT: Final = """
import asyncio, importlib.util, sys
import tidemark
from tidemark.formats import native


async def main(url):
    async with tidemark.connect(url) as mq:
        await mq.create_topic("orders", queues=1)
        await mq.send("orders", b"hello")
        [message] = (await mq.pull("orders", 0, offset=0, wait_ms=10_000)).messages
        assert message.body == b"hello", message
    assert not native.WHY_PURE, native.WHY_PURE
    extra = [name for name in ("click", "prometheus_client", "rich", "uvloop")
             if importlib.util.find_spec(name)]
    print("message received; of the extra server:", ", ".join(extra) or "nothing")


asyncio.run(main(sys.argv[1]))
"""


class Failed(Exception):
    """An installed package does not do what it should."""


async def first_message(server: Path, client: Path, *, store: Path, port: int) -> str:
    """Start a node from one environment, send and read a message from another.

    server, client: directories of virtual environments. port: the first of three free ports.
    Returns what the client printed. Raises Failed, or TimeoutError if the node does not start.
    """
    program = server / "bin" / "tidemark"
    options = ["--nodes", "1", "--store", str(store), "--port", str(port)]
    node = await asyncio.create_subprocess_exec(
        program, "dev", *options, cwd=store.parent, stdout=PIPE, stderr=STDOUT
    )
    try:
        async with asyncio.timeout(START_S):
            await _started(node)
        return await asyncio.to_thread(_client, client, f"http://127.0.0.1:{port}")
    finally:
        node.terminate()
        await node.communicate()


async def _started(node: asyncio.subprocess.Process) -> None:
    assert node.stdout is not None
    printed = b""
    async for line in node.stdout:
        printed += line
        if b"Stop with Ctrl-C" in line:
            return
    raise Failed(f"the node ended at its start:\n{printed.decode()}")


def _client(environment: Path, url: str) -> str:
    return _output([environment / "bin" / "python", "-I", "-c", CLIENT, url], status=0)


def command_without_extra(client: Path, program: str) -> str:
    """Return what a program prints in an environment without its extra. Raises Failed."""
    return _output([client / "bin" / program, "--help"], status=2)


def _output(command: list[str | Path], *, status: int) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=CALL_S
    )
    if done.returncode != status:
        raise Failed(f"{command[0]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout
