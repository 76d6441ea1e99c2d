"""Settings: one frozen dataclass per service, from TOML, environment and command line.

Precedence, lowest first: the dataclass's defaults, the TOML file, the environment, the command
line. All mistakes are collected and reported together, each with the field's name, unit and rule,
so that an operator corrects a file once. An unknown key is a mistake too: a misspelt
``flush_interval_ms`` must not silently leave its default in force.

A field is declared with ``setting`` (unit, bounds, explanation) or as a plain dataclass field.
Supported types: bool, int, float, str, Path, Literal, tuple of str, any of these or None, and a
dataclass for a table.
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

# Kubernetes puts the address of every service of the namespace into each container's environment:
# a service called `tidemark-broker` creates TIDEMARK_BROKER_PORT=tcp://10.0.0.1:8080.
_SERVICE_LINK: Final = re.compile(r"SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The bounds of a field's value, and the text that describes them."""

    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    says: str = ""

    def broken_by(self, value: object) -> bool:
        """Return whether value is a number outside the bounds."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return True
        return (self.minimum is not None and value < self.minimum) or (
            self.maximum is not None and value > self.maximum
        )

    def text(self) -> str:
        """Return the bounds with their unit, for example ``from 1 to 60000 ms``."""
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
    """Declare a field with its unit, its bounds and one line on the effect of either extreme."""
    rule = Rule(unit=unit, minimum=minimum, maximum=maximum, says=says)
    return dataclasses.field(default=default, metadata={_RULE: rule})


class BrokenRules(ValueError):
    """Raised if values of a dataclass contradict each other."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        super().__init__("; ".join(rules))
        self.rules = rules


class Ruled:
    """A settings dataclass with rules between its fields. Creating it may raise BrokenRules."""

    def broken_rules(self) -> Iterator[str]:
        """Yield a sentence, naming the fields, for each rule that the values break."""
        yield from ()

    def __post_init__(self) -> None:
        """Check the rules."""
        if broken := tuple(self.broken_rules()):
            raise BrokenRules(broken)


def unless_read(name: str, read: Callable[[], object]) -> Iterator[str]:
    """Yield a broken rule, prefixed with the field's name, if ``read`` raises ValueError."""
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

    path: a TOML file, or None. env_prefix: for example ``TIDEMARK_BROKER_``; a field ``host`` is
    then read from ``TIDEMARK_BROKER_HOST``, and a field of a table ``store`` from
    ``TIDEMARK_BROKER_STORE_…``. overrides: values by field name, with a dot between a table and its
    field; None means not given. environment: ``os.environ`` by default.
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
    """Return name → (field, resolved type) of a dataclass."""
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
            return  # _build reports a value in place of a table
        values = below
    values[names[-1]] = value


class _EnvironmentText(str):
    """Text from the environment; it is parsed according to its field's type."""


def _build(cls: type[T], values: Mapping[str, object], above: str, mistakes: list[str]) -> T | None:
    """Create a cls from values; if impossible, return None and add to mistakes."""
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
    # A field with a mistake has its default here, so that rules between other fields are checked.
    try:
        built = cls(**arguments)
    except BrokenRules as error:
        names = re.compile(rf"\b({'|'.join(map(re.escape, wrong))})\b" if wrong else "(?!)")
        mistakes += [rule for rule in error.rules if names.search(rule) is None]
        return None
    return built if len(mistakes) == before else None


def _read(value: object, kind: object, rule: Rule) -> object:
    """Convert value to kind; raises ValueError with what was expected."""
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
    """Convert value to bool, int, float, str or Path; None if that is impossible."""
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
    """Describe a type and its rule, for example ``a whole number from 1 to 60000 ms``."""
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
