"""Settings: one frozen dataclass per service, from TOML, environment and command line.

Later wins: the dataclass's defaults, the TOML file, the environment, the command line. All
mistakes are found before any of them is reported, each by its field's name with unit and rule, so
that an operator repairs a file once. A key that no field has is a mistake too: a misspelt
``flush_interval_ms`` must not silently mean its default.

A field is declared with ``setting`` (unit, bounds, what it says) or plainly. Types understood:
bool, int, float, str, Path, Literal, tuple of str, any of them or None, a dataclass for a table.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar, cast

from tidemark.errors import BadConfig

T = TypeVar("T")
_RULE: Final = "tidemark.rule"

# Kubernetes writes the address of every service of the namespace into each container's
# environment; a service called `tidemark-broker` makes TIDEMARK_BROKER_PORT=tcp://10.0.0.1:8080.
_SERVICE_LINK: Final = re.compile(r"SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What a field's value must keep, and how to say it."""

    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    says: str = ""

    def broken_by(self, value: object) -> bool:
        """Tell whether a number lies outside the bounds."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return True
        return (self.minimum is not None and value < self.minimum) or (
            self.maximum is not None and value > self.maximum
        )

    def text(self) -> str:
        """Say the bounds with their unit: ``from 1 to 60000 ms``."""
        unit = f" {self.unit}" if self.unit else ""
        match self.minimum, self.maximum:
            case None, None:
                return f"in{unit}" if unit else ""
            case low, None:
                return f"at least {low}{unit}"
            case None, high:
                return f"at most {high}{unit}"
            case low, high:
                return f"from {low} to {high}{unit}"
        return ""


def setting(
    default: T,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    says: str = "",
) -> T:
    """Declare a field with its unit, bounds and one line on what either extreme does."""
    rule = Rule(unit=unit, minimum=minimum, maximum=maximum, says=says)
    return dataclasses.field(default=default, metadata={_RULE: rule})


class BrokenRules(ValueError):
    """Values of a dataclass that do not go together."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        super().__init__("; ".join(rules))
        self.rules = rules


class Ruled:
    """A dataclass of settings with rules between its fields. Raises BrokenRules when it is made."""

    def broken_rules(self) -> Iterator[str]:
        """Each rule that the values break, in a sentence that names the fields."""
        yield from ()

    def __post_init__(self) -> None:
        """Check the rules."""
        if broken := tuple(self.broken_rules()):
            raise BrokenRules(broken)


def unless_read(name: str, read: Callable[[], object]) -> Iterator[str]:
    """The rule that a text can be read. name: of its field. read: raises ValueError if not."""
    try:
        read()
    except ValueError as error:
        yield f"{name}: {error}"


def load(
    cls: type[T],
    path: Path | None = None,
    env_prefix: str = "",
    overrides: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> T:
    """Build cls from all sources; raise BadConfig naming every mistake.

    path: a TOML file, or None. env_prefix: ``TIDEMARK_BROKER_``; a field ``host`` is then read from
    ``TIDEMARK_BROKER_HOST``, one of a table ``store`` from ``TIDEMARK_BROKER_STORE_…``. overrides:
    by field name, nested with a dot; None means not given. environment: default ``os.environ``.
    """
    mistakes: list[str] = []
    values = _from_toml(path, mistakes)
    if env_prefix:
        env = os.environ if environment is None else environment
        _put_environment(cls, env, env_prefix, values, mistakes)
    for name, value in (overrides or {}).items():
        if value is not None:
            _put(values, name.split("."), value)
    built = _build(cls, values, "", mistakes)
    if mistakes or built is None:
        raise BadConfig(
            f"{len(mistakes)} mistake{'s' * (len(mistakes) != 1)} in the configuration"
            + (f" ({path})" if path else "")
            + ":\n"
            + "".join(f"  - {mistake}\n" for mistake in mistakes),
            "Nothing was started. Correct them and start again.",
            mistakes=tuple(mistakes),
        )
    return built


def _from_toml(path: Path | None, mistakes: list[str]) -> dict[str, object]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        mistakes.append(f"{path} cannot be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        mistakes.append(f"{path} is not TOML: {error}")
    return {}


def _fields(cls: type) -> dict[str, tuple[dataclasses.Field[object], object]]:
    """Name → (field, resolved type) of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {
        field.name: (field, hints[field.name]) for field in dataclasses.fields(cls) if field.init
    }


def _put_environment(
    cls: type,
    environment: Mapping[str, str],
    prefix: str,
    values: dict[str, object],
    mistakes: list[str],
) -> None:
    names = dict(_environment_names(cls, prefix, ()))
    for variable in sorted(environment):
        if not variable.startswith(prefix):
            continue
        text = environment[variable]
        if _SERVICE_LINK.fullmatch(variable.removeprefix(prefix)) or text.startswith("tcp://"):
            continue
        if variable in names:
            _put(values, names[variable], _EnvironmentText(text))
        else:
            mistakes.append(f"{variable} in the environment is not a setting")


def _environment_names(
    cls: type, prefix: str, above: tuple[str, ...]
) -> list[tuple[str, tuple[str, ...]]]:
    found: list[tuple[str, tuple[str, ...]]] = []
    for name, (_, kind) in _fields(cls).items():
        variable = prefix + name.upper()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            found += _environment_names(kind, variable + "_", (*above, name))
        else:
            found.append((variable, (*above, name)))
    return found


def _put(values: dict[str, object], names: typing.Sequence[str], value: object) -> None:
    for name in names[:-1]:
        below = values.setdefault(name, {})
        if not isinstance(below, dict):
            return  # the value standing where a table belongs is reported by _build
        values = below
    values[names[-1]] = value


class _EnvironmentText(str):
    """Text from the environment: its field's type says how to read it."""


def _build(cls: type[T], values: Mapping[str, object], above: str, mistakes: list[str]) -> T | None:
    """Make a cls of values; None, and entries in mistakes, if that is impossible."""
    known = _fields(cls)
    before = len(mistakes)
    wrong: set[str] = set()
    is_whole = True
    arguments: dict[str, object] = {}
    for name in values.keys() - known.keys():
        mistakes.append(f"{above}{name} is not a setting")
    for name, (field, kind) in known.items():
        full = above + name
        rule = cast(Rule, field.metadata.get(_RULE, Rule()))
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            table = values.get(name, {})
            if isinstance(table, kind):
                arguments[name] = table
            elif isinstance(table, Mapping):
                below = _build(kind, table, full + ".", mistakes)
                if below is None:
                    wrong.add(name)
                else:
                    arguments[name] = below
            else:
                wrong.add(name)
                mistakes.append(f"{full} must be a table of settings")
        elif name in values:
            try:
                arguments[name] = _read(values[name], kind, rule)
            except ValueError as error:
                wrong.add(name)
                mistakes.append(f"{full} = {_shown(values[name])}: {error}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            mistakes.append(f"{full} is missing: {_expected(kind, rule)}")
            is_whole = False
    if not is_whole:
        return None
    # A field with a mistake has its default here, so that the other rules are judged as well.
    try:
        built = cls(**arguments)
    except BrokenRules as error:
        names = re.compile(rf"\b({'|'.join(map(re.escape, wrong))})\b" if wrong else "(?!)")
        mistakes += [rule for rule in error.rules if names.search(rule) is None]
        return None
    return built if len(mistakes) == before else None


def _read(value: object, kind: object, rule: Rule) -> object:
    """Turn value into kind; ValueError says what was expected."""
    expected = ValueError("must be " + _expected(kind, rule))
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        choices = typing.get_args(kind)
        if types.NoneType in choices and isinstance(value, _EnvironmentText) and not value:
            return None
        inner = [choice for choice in choices if choice is not types.NoneType]
        for choice in inner:
            try:
                return _read(value, choice, rule)
            except ValueError:
                continue
        raise expected
    if origin is typing.Literal:
        for choice in typing.get_args(kind):
            if value == choice or (isinstance(value, _EnvironmentText) and value == str(choice)):
                return cast(object, choice)
        raise expected
    if origin is tuple:
        if isinstance(value, _EnvironmentText):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise expected
    read = _scalar(value, kind)
    if read is None or rule.broken_by(read):
        raise expected
    return read


def _scalar(value: object, kind: object) -> object | None:
    """Read a bool, int, float, str or Path; None if value is not one."""
    if isinstance(value, _EnvironmentText):
        text = value.strip()
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
        if kind is int or kind is float:
            try:
                return int(text) if kind is int else float(text)
            except ValueError:
                return None
        value = str(value)
    if kind is bool or kind is int:
        # bool is an int in Python: `port = true` must not become port 1.
        return value if type(value) is kind else None
    if kind is float:
        return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is Path:
        return Path(value) if isinstance(value, (str, Path)) and str(value) else None
    return None


def _expected(kind: object, rule: Rule) -> str:
    """Say a type and its rule: ``a whole number from 1 to 60000 ms``."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        inner = [choice for choice in typing.get_args(kind) if choice is not types.NoneType]
        return " or ".join(_expected(choice, rule) for choice in inner) + ", or absent"
    if origin is typing.Literal:
        words = "one of " + ", ".join(repr(choice) for choice in typing.get_args(kind))
    elif origin is tuple:
        words = "a list of texts"
    else:
        words = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            str: "a text",
            Path: "a path",
        }.get(cast(type, kind), str(kind))
    said = " ".join(part for part in (words, rule.text()) if part)
    return f"{said} ({rule.says})" if rule.says else said


def _shown(value: object) -> str:
    text = repr(str(value)) if isinstance(value, _EnvironmentText) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
