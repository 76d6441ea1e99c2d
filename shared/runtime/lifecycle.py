"""Life of a process: starts, runs its parts until a signal or a failure, reports why it ended.

On SIGTERM and SIGINT the running batch is finished; SIGKILL at any instruction is safe. If a part
dies, the process ends with a non-zero status: a broker without its flusher must not seem alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Final

import uvloop

from shared.runtime.bus_error import name_bus_errors
from tidemark.errors import BadConfig, PartEnded, TidemarkError, code_of
from tidemark.formats import native

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
STOP_GRACE_S: Final = 30.0
SWITCH_S: Final = 0.0005
"""Time for which a busy thread may keep the interpreter lock from the loop, which needs it again in
each iteration that an answer takes. With Python's default of 5 ms, one send in a hundred took 120
to 200 ms while the broker wrote files of 10,000 groups; with this value, 5 to 10 ms."""


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set stop on SIGTERM or SIGINT. Call from the running loop of the main thread."""
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)


async def run_parts(
    stop: asyncio.Event,
    parts: Mapping[str, Callable[[], Awaitable[None]]],
    *,
    grace_s: float = STOP_GRACE_S,
) -> None:
    """Run all parts concurrently until stop is set, then wait for them to return.

    Each part checks stop itself. A part that raises, or returns before stop is set, stops the
    others, and the error is raised (a group if there are several). Parts that have not returned
    grace_s seconds after the stop are cancelled.
    """
    tasks = {asyncio.ensure_future(_part(name, run, stop)): name for name, run in parts.items()}
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        _, late = await asyncio.wait(tasks, timeout=grace_s)
        for task in late:
            log.warning(
                "a part did not stop in time", extra={"event": "part-late", "part": tasks[task]}
            )
    finally:
        stopped.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)
    errors = [
        error
        for task in tasks
        if not task.cancelled() and isinstance(error := task.exception(), Exception)
    ]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several parts failed", errors)


async def _part(name: str, run: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    await run()
    if not stop.is_set():
        raise PartEnded(f"the part {name} ended without a request to stop", part=name)


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def run_process(main: Callable[[], Coroutine[None, None, None]]) -> int:
    """Run a service's main coroutine; log why it ended; return the exit status.

    The status is 0 after an orderly stop, 2 for a mistake of the operator (configuration), 1 for a
    failure of disk or store. Our own bugs are not caught: the interpreter prints the traceback and
    exits with 1.
    """
    if native.WHY_PURE:
        log.warning(
            "the pure Python implementation of the hot functions is used, many times slower",
            extra={"event": "pure-twins", "reason": native.WHY_PURE},
        )
    name_bus_errors(_report)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except KeyboardInterrupt:
        return EXIT_FAILED
    except (TidemarkError, OSError) as error:
        return _report(error)
    except BaseExceptionGroup as group:
        causes = list(_causes(group))
        known = [cause for cause in causes if isinstance(cause, (TidemarkError, OSError))]
        if len(known) < len(causes):
            raise
        return max(_report(cause) for cause in known)
    finally:
        sys.setswitchinterval(before_s)
    return 0


def run_work(work: Callable[[], None]) -> int:
    """Run a command that needs no event loop; return an exit status as ``run_process`` does."""
    try:
        work()
    except KeyboardInterrupt:
        return EXIT_FAILED
    except (TidemarkError, OSError) as error:
        return _report(error)
    return 0


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit: every mapped file needs one descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """Return how many files and sockets this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _report(error: TidemarkError | OSError) -> int:
    log.error("the service ended: %s", error, extra={"event": "ended", "code": code_of(error)})
    # The printed line is for a person at a terminal; the JSON line above is for machines.
    with contextlib.suppress(OSError):
        print(f"tidemark: {error}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, BadConfig) else EXIT_FAILED
