"""Constructors stay small, and no component is changed from outside after its construction.

The rules, decided from the syntax of the product packages:

1. A class takes at most PARAMETERS_MAX parameters in ``__init__``. The same holds for the fields of
   a ``NamedTuple`` or dataclass that holds components: one with a field whose type is a callable or
   a class with behaviour. Parameters of plain values (numbers, text, bytes, paths) are
   configuration and do not count. A ``NamedTuple`` or dataclass without components is a value, for
   example a decoded record or a row, and has no limit.
2. No component is wired up after its construction: a module does not assign an attribute of an
   object of another module if that attribute holds a callable or a component. It does so if every
   class that sets an attribute of this name in ``__init__``, or has such a field, declares it with
   a callable, a class with behaviour or a lambda. Objects that the same function created, and
   classes outside the project, are not decided. Numbers and flags of records with methods, such as
   the counts of a session, are not wiring.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("tidemark", "shared", "services", "analytics", "drills")
PARAMETERS_MAX: Final = 8
PLAIN: Final = frozenset(
    {"int", "float", "bool", "str", "bytes", "Path", "None", "tuple", "object"}
)
VALUE_BASES: Final = frozenset(
    {"NamedTuple", "Enum", "StrEnum", "IntEnum", "Flag", "IntFlag", "TypedDict", "NewType"}
)
FOREIGN: Final = frozenset({"drills/faulty.py", "drills/pods/enter.py"})
"""Replace attributes of the code under test: that is what they are for."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    """One class of the project."""

    module: str
    node: ast.ClassDef

    @property
    def is_fields(self) -> bool:
        """Whether the class consists of fields: a NamedTuple or a dataclass."""
        decorators = (
            each.func if isinstance(each, ast.Call) else each for each in self.node.decorator_list
        )
        return "NamedTuple" in self.bases or "dataclass" in {name_of(each) for each in decorators}

    @property
    def bases(self) -> set[str]:
        return {name_of(base) for base in self.node.bases}

    @property
    def is_value(self) -> bool:
        bases = self.bases
        return (
            self.is_fields
            or bool(bases & VALUE_BASES)
            or any(base.endswith(("Error", "Exception")) for base in bases)
        )

    @property
    def init(self) -> ast.FunctionDef | None:
        for each in self.node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                return each
        return None


def name_of(node: ast.expr) -> str:
    """The last name of an expression such as ``a.b[c]``: ``b``."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Subscript():
            return name_of(node.value)
        case _:
            return ""


def names_in(annotation: ast.expr | None) -> set[str]:
    """All names in an annotation, quoted ones included; None is one."""
    if annotation is None:
        return set()
    found: set[str] = set()
    for node in ast.walk(annotation):
        match node:
            case ast.Name():
                found.add(node.id)
            case ast.Constant(value=None):
                found.add("None")
            case ast.Constant(value=str() as text):
                found |= names_in(ast.parse(text, mode="eval").body)
    return found


class Project:
    """The syntax of all product packages."""

    def __init__(self) -> None:
        self.trees = {
            str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
        }
        self.classes = [
            Found(path, node)
            for path, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        ]
        by_name: dict[str, list[Found]] = defaultdict(list)
        for each in self.classes:
            by_name[each.node.name].append(each)
        # A name that is a value in one module and a component in another counts as a value.
        self.components = {
            name for name, found in by_name.items() if not any(each.is_value for each in found)
        }
        self.owners: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        """Attribute → module of each class that declares it, and whether it is wiring there."""
        for each in self.classes:
            for attribute, is_wiring in self._attributes_of(each).items():
                self.owners[attribute].append((each.module, is_wiring))

    def _attributes_of(self, found: Found) -> dict[str, bool]:
        """Attribute → whether it holds a callable or a component."""
        types = {
            each.target.id: (names_in(each.annotation), each.value)
            for each in found.node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        if (init := found.init) is not None:
            arguments = [*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs]
            given = {each.arg: names_in(each.annotation) for each in arguments}
            for node in ast.walk(init):
                if isinstance(node, ast.Assign) and len(node.targets) == 1:
                    target, value, names = node.targets[0], node.value, set[str]()
                elif isinstance(node, ast.AnnAssign) and node.value is not None:
                    target, value, names = node.target, node.value, names_in(node.annotation)
                else:
                    continue
                if isinstance(target, ast.Attribute) and name_of(target.value) == "self":
                    if isinstance(value, ast.Name):
                        names = names | given.get(value.id, set())
                    elif isinstance(value, ast.Call):
                        names = names | {name_of(value.func)}
                    types[target.attr] = names, value
        return {
            attribute: isinstance(value, ast.Lambda)
            or "Callable" in names
            or bool(names & self.components)
            for attribute, (names, value) in types.items()
        }

    def wide_constructors(self) -> Iterator[str]:
        for found in self.classes:
            count = self._count(found)
            if count > PARAMETERS_MAX:
                yield f"{found.module}: {found.node.name} takes {count} parameters"

    def _count(self, found: Found) -> int:
        if found.is_fields:
            types = [
                names_in(each.annotation)
                for each in found.node.body
                if isinstance(each, ast.AnnAssign)
            ]
            if not any("Callable" in names or names & self.components for names in types):
                return 0
        elif (init := found.init) is not None:
            arguments = init.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]
            types = [names_in(each.annotation) for each in every]
        else:
            return 0
        return sum(not names <= PLAIN for names in types)

    def outside_assignments(self) -> Iterator[str]:
        for path, tree in self.trees.items():
            if path in FOREIGN:
                continue
            for function in ast.walk(tree):
                if isinstance(function, Function):
                    for line, target in assigned_attributes(function):
                        if self._is_wired_elsewhere(path, target.attr):
                            yield f"{path}:{line}: {ast.unparse(target)} is assigned"

    def _is_wired_elsewhere(self, path: str, attribute: str) -> bool:
        owners = self.owners.get(attribute, [])
        return bool(owners) and all(module != path and wiring for module, wiring in owners)


def assigned_attributes(function: Function) -> Iterator[tuple[int, ast.Attribute]]:
    """Attributes that a function assigns of objects that it has neither created nor is part of."""
    created = {"self", "cls", "made"}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=ast.Call() | ast.Await()):
                created |= {name_of(each) for each in targets}
            case ast.AnnAssign(target=target, value=ast.Call() | ast.Await()):
                created.add(name_of(target))
            case ast.NamedExpr(target=target, value=ast.Call() | ast.Await()):
                created.add(target.id)
            case ast.withitem(optional_vars=ast.Name(id=name)):
                created.add(name)
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and not (isinstance(node.value, ast.Name) and node.value.id in created)
        ):
            yield node.lineno, node


PROJECT: Final = Project()


def test_constructors_take_few_parameters() -> None:
    assert sorted(PROJECT.wide_constructors()) == []


def test_no_component_is_wired_up_after_its_construction() -> None:
    assert sorted(PROJECT.outside_assignments()) == []
