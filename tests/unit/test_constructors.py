"""Constructors stay small, and no component is changed from outside after its construction.

The rules, decided from the syntax of the product packages:

1. An ``__init__`` takes at most PARAMETERS_MAX parameters, whatever their types. The same holds for
   the fields of a ``NamedTuple`` or dataclass that is not a value. A value, for example the
   configuration, a decoded record or a row, has no limit: the types of all its fields are plain
   data or values, and its methods neither await nor assign its fields.
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

import pytest

pytestmark = pytest.mark.xdist_group("constructors")

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("tidemark", "shared", "services", "analytics", "drills", "deploy")
PARAMETERS_MAX: Final = 8
PLAIN: Final = frozenset(
    [
        "int",
        "float",
        "bool",
        "str",
        "bytes",
        "bytearray",
        "memoryview",
        "None",
        "object",
        "Any",
        "Path",
        "date",
        "datetime",
        "timedelta",
        "tuple",
        "list",
        "dict",
        "set",
        "frozenset",
        "Sequence",
        "Mapping",
        "Counter",
        "Literal",
        "Final",
        "NewType",
    ]
)
"""Types of the language and its library that hold data."""
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
    def fields(self) -> list[ast.AnnAssign]:
        return [
            each
            for each in self.node.body
            if isinstance(each, ast.AnnAssign)
            and name_of(each.annotation) not in ("ClassVar", "KW_ONLY")
        ]

    @property
    def methods(self) -> list[Function]:
        return [each for each in self.node.body if isinstance(each, Function)]

    @property
    def is_data_by_base(self) -> bool:
        """Whether it is an enum, a typed dictionary or an exception."""
        bases = self.bases
        return bool(bases & VALUE_BASES) or any(
            base.endswith(("Error", "Exception")) for base in bases
        )

    @property
    def init(self) -> ast.FunctionDef | None:
        for each in self.node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                return each
        return None


def acts(method: Function) -> bool:
    """Whether a method awaits, or assigns an attribute of its object."""
    return isinstance(method, ast.AsyncFunctionDef) or any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and name_of(node.value) == "self"
        for node in ast.walk(method)
    )


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
    match annotation:
        case None:
            return set()
        case ast.Subscript() if name_of(annotation) == "Literal":
            return {"Literal"}
        case ast.Name() | ast.Attribute():
            return {name_of(annotation)}
        case ast.Constant(value=None):
            return {"None"}
        case ast.Constant(value=str() as text):
            return names_in(ast.parse(text, mode="eval").body)
        case _:
            parts = ast.iter_child_nodes(annotation)
            return set[str]().union(
                *(names_in(each) for each in parts if isinstance(each, ast.expr))
            )


class Project:
    """The syntax of all product packages."""

    def __init__(self) -> None:
        self.trees = {
            str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
        }
        self.classes: list[Found] = []
        self.functions: list[tuple[str, Function]] = []
        """Module and function."""
        self.names: dict[tuple[str, str], Found | ast.expr | tuple[str, str]] = {}
        """Module and name → a class, the expression of an alias, or the place of an import."""
        for path, tree in self.trees.items():
            self._collect(path, tree)
        for each in self.classes:
            self.names[each.module, each.node.name] = each
        self.owners: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        """Attribute → module of each class that declares it, and whether it is wiring there."""
        for each in self.classes:
            for attribute, is_wiring in self._attributes_of(each).items():
                self.owners[attribute].append((each.module, is_wiring))

    def _collect(self, path: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes.append(Found(path, node))
            elif isinstance(node, Function):
                self.functions.append((path, node))
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                source = node.module.replace(".", "/") + ".py"
                for each in node.names:
                    self.names[path, each.asname or each.name] = source, each.name
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[path, name] = value

    def _found(self, module: str, name: str) -> tuple[str, Found | ast.expr | None]:
        """The class or alias that a name of a module stands for, and its module; None: foreign."""
        found = self.names.get((module, name))
        while isinstance(found, tuple) and not isinstance(found, Found):
            module, name = found
            found = self.names.get((module, name))
        return module, found

    def is_data(self, module: str, annotation: ast.expr | None, seen: frozenset[str]) -> bool:
        """Whether a type is plain data or a value. seen: classes that are being decided."""
        for name in names_in(annotation):
            where, found = self._found(module, name)
            if isinstance(found, Found):
                if name not in seen and not self.is_value(found, seen | {name}):
                    return False
            elif found is not None:
                if name not in seen and not self.is_data(where, found, seen | {name}):
                    return False
            elif name not in PLAIN:
                return False
        return True

    def is_value(self, found: Found, seen: frozenset[str] = frozenset()) -> bool:
        if found.is_data_by_base:
            return True
        if "Protocol" in found.bases:
            return all(
                isinstance(each, ast.FunctionDef)
                and "property" in map(name_of, each.decorator_list)
                and self.is_data(found.module, each.returns, seen)
                for each in found.methods
            )
        return (
            found.is_fields
            and all(self.is_data(found.module, each.annotation, seen) for each in found.fields)
            and not any(map(acts, found.methods))
        )

    def _is_component(self, module: str, name: str) -> bool:
        _, found = self._found(module, name)
        return isinstance(found, Found) and not found.is_fields and not found.is_data_by_base

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
            or any(self._is_component(found.module, name) for name in names)
            for attribute, (names, value) in types.items()
        }

    def wide_constructors(self) -> Iterator[str]:
        for found in self.classes:
            count = self._count(found)
            if count > PARAMETERS_MAX:
                yield f"{found.module}: {found.node.name} takes {count} parameters"

    def _count(self, found: Found) -> int:
        if (init := found.init) is not None:
            arguments = init.args
            return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1
        if found.is_fields and not self.is_value(found):
            return len(found.fields)
        return 0

    def outside_assignments(self) -> Iterator[str]:
        for path, function in self.functions:
            if path in FOREIGN:
                continue
            for line, target in assigned_attributes(function):
                if self._is_wired_elsewhere(path, target.attr):
                    yield f"{path}:{line}: {ast.unparse(target)} is assigned"

    def _is_wired_elsewhere(self, path: str, attribute: str) -> bool:
        owners = self.owners.get(attribute, [])
        return bool(owners) and all(module != path and wiring for module, wiring in owners)


def assigned_attributes(function: Function) -> Iterator[tuple[int, ast.Attribute]]:
    """Attributes that a function assigns of objects that it has neither created nor is part of."""
    created = {"self", "cls", "made"}
    nodes = list(ast.walk(function))
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=ast.Call() | ast.Await()):
                created |= {name_of(each) for each in targets}
            case ast.AnnAssign(target=target, value=ast.Call() | ast.Await()):
                created.add(name_of(target))
            case ast.NamedExpr(target=target, value=ast.Call() | ast.Await()):
                created.add(target.id)
            case ast.withitem(optional_vars=ast.Name(id=name)):
                created.add(name)
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and not (isinstance(node.value, ast.Name) and node.value.id in created)
        ):
            yield node.lineno, node


@pytest.fixture(scope="module")
def project() -> Project:
    return Project()


def test_constructors_take_few_parameters(project: Project) -> None:
    assert sorted(project.wide_constructors()) == []


def test_no_component_is_wired_up_after_its_construction(project: Project) -> None:
    assert sorted(project.outside_assignments()) == []
