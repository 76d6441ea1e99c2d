"""``for_each``: a test over many values that is one item of pytest.

An item costs several milliseconds before its test begins, in each process that collects it: more
than most seeds of a simulation. ``pytest.mark.parametrize`` is for values that a reader wants to
see by name, ``for_each`` for seeds and large tables.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def for_each(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test once for every value; the first failure ends it and names its value.

    names: one parameter of the test, or several, as for ``parametrize``: each value is then a
    tuple of as many. They are taken when the test first runs, so those of a generator cost
    nothing in the workers that only collect it. Every call has an empty ``tmp_path``, and what it
    has patched is taken back behind it. Other fixtures are those of the item.
    """
    given = (names,) if isinstance(names, str) else names

    @functools.cache
    def rows() -> list[tuple[Any, ...]]:
        return [(value,) if isinstance(names, str) else value for value in values]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def called(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
            row = rows()[number]
            arguments = fixtures | dict(zip(given, row, strict=True))
            if "tmp_path" in fixtures:
                arguments["tmp_path"] = fixtures["tmp_path"] / str(number)
                arguments["tmp_path"].mkdir()
            try:
                yield arguments
            except BaseException as failure:
                failure.add_note(f"with {', '.join(given)} = {', '.join(map(repr, row))}")
                raise
            finally:
                if "monkeypatch" in fixtures:
                    fixtures["monkeypatch"].undo()

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for number in range(len(rows())):
                with called(fixtures, number) as arguments:
                    test(**arguments)

        @functools.wraps(test)
        async def run_async(**fixtures: Any) -> None:
            for number in range(len(rows())):
                with called(fixtures, number) as arguments:
                    await test(**arguments)

        is_async = inspect.iscoroutinefunction(test)
        item: Callable[..., Any] = run_async if is_async else run
        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in given]
        setattr(item, "__signature__", signature.replace(parameters=left))  # noqa: B010 - typed so
        return item

    return decorate
