"""A mistake planted as a change of the product's source, for the length of a ``with``.

The source of the module is changed and compiled, and the code of its functions is exchanged in
place. So all importers run the mistake, and nothing is written to a file. If the product no longer
has the text, the test fails instead of proving nothing.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType, ModuleType


@contextmanager
def changed(module: ModuleType, *changes: tuple[str, str]) -> Iterator[None]:
    """Change the module. changes: (old, new), each old text exactly once in the module, within
    functions."""
    source = inspect.getsource(module)
    for old, new in changes:
        assert source.count(old) == 1, f"{module.__name__} has {source.count(old)} times: {old}"
        source = source.replace(old, new)
    with exchanged(module, source):
        yield


@contextmanager
def exchanged(module: ModuleType, source: str | ast.Module) -> Iterator[None]:
    """Run the module's functions with the code of another source that has the same functions."""
    assert module.__file__ is not None
    functions = dict(_functions(module))
    before = {name: function.__code__ for name, function in functions.items()}
    for code in _codes(compile(source, module.__file__, "exec", dont_inherit=True)):
        function = functions.get(code.co_qualname)
        if function is not None:
            assert code.co_freevars == function.__code__.co_freevars
            function.__code__ = code
    try:
        yield
    finally:
        for name, code in before.items():
            functions[name].__code__ = code


def change(
    module: ModuleType, *changes: tuple[str, str]
) -> Callable[[], AbstractContextManager[None]]:
    """``changed``, to be entered later."""
    return lambda: changed(module, *changes)


def _functions(owner: ModuleType | type) -> Iterator[tuple[str, FunctionType]]:
    home = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    for value in list(vars(owner).values()):
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(inner, property):
            found = [each for each in (inner.fget, inner.fset) if isinstance(each, FunctionType)]
        else:
            found = [inner] if isinstance(inner, FunctionType) else []
        for function in found:
            if function.__module__ == home:
                yield function.__code__.co_qualname, function
        if isinstance(value, type) and value.__module__ == home and value is not owner:
            yield from _functions(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            if "<locals>" not in constant.co_qualname:
                yield from _codes(constant)
