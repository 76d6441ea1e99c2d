"""Derives blocking calls from the calls of the asyncio client, with their signatures and texts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Runs(Protocol):
    """Runs work in the loop's thread and waits for it (``SyncClient``)."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work."""


class Facade(Protocol):
    """An object with blocking calls."""

    @property
    def _target(self) -> Any:
        """Object whose methods are called."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T: ...


def blocking(
    call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade, P], T]:
    """Return the blocking form of a coroutine method."""

    def blocked(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(call(self._target, *args, **kwargs))

    functools.update_wrapper(blocked, call)
    return blocked


def in_loop(call: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Facade, P], T]:
    """Return the form of a plain method that runs in the loop's thread, which owns its state."""

    def blocked(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(called(functools.partial(call, self._target, *args, **kwargs)))

    functools.update_wrapper(blocked, call)
    return blocked


def iterating(
    call: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Facade, P], Iterator[T]]:
    """Return the blocking form of an async generator; an element costs two thread switches."""

    def iterate(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        elements = call(self._target, *args, **kwargs)

        async def following() -> tuple[T] | None:
            # Wrapped: StopAsyncIteration cannot leave a coroutine, and None may be an element.
            async for element in elements:
                return (element,)
            return None

        while (found := self._run(following())) is not None:
            yield found[0]

    return with_texts_of(call, iterate, returns=Iterator)


def with_texts_of(
    call: Callable[..., object], made: Callable[P, T], *, returns: object
) -> Callable[P, T]:
    """Give ``made`` the signature and documentation of ``call``, but its own type of result."""
    documented: Any = functools.update_wrapper(made, call)
    documented.__signature__ = inspect.signature(call).replace(return_annotation=returns)
    return made


async def called(call: Callable[[], T]) -> T:
    """Make a plain call as a coroutine, so that it runs in the loop's thread."""
    return call()
