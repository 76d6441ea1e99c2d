"""The result of a query, found from its syntax tree and the catalogue: a unit, and a set of labels.

It checks rules and dashboards independently: it knows what each metric counts and what functions do
to it, and refuses expressions without a meaning (a rate of a gauge, bytes added to seconds, an
unknown label, two sides of an operator that can never match).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import promql_parser as ast

from shared.metrics.catalogue import BY_NAME
from shared.metrics.family import Kind

TARGET: Final = frozenset({"cluster", "broker", "replica", "service", "job", "instance"})
ANY: Final = "any"
"""The unit of a literal, and of 0 times anything."""
COUNT: Final = "count"
"""How many series: of ``count``."""
RATIO: Final = "ratio"
PLAIN: Final = "–"
MILLISECONDS: Final = "ms"

_KEEP: Final = frozenset(
    {
        "abs", "clamp_min", "clamp_max", "ceil", "floor", "round", "max_over_time",
        "min_over_time", "avg_over_time", "last_over_time", "sort", "sort_desc", "sgn",
    }
)  # fmt: skip
_OF_COUNTERS: Final = frozenset({"rate", "irate", "increase"})
_OF_GAUGES: Final = frozenset({"deriv", "delta", "predict_linear"})
_COMPARING: Final = frozenset({"==", "!=", ">", "<", ">=", "<="})
_SETS: Final = frozenset({"and", "or", "unless"})


class Nonsense(Exception):
    """A query that Prometheus may accept and that cannot mean anything."""


class Series(NamedTuple):
    """What is known of a metric that Prometheus stores."""

    kind: str
    """``gauge``, ``counter``, ``bucket``."""
    unit: str
    labels: frozenset[str]


class Yield(NamedTuple):
    """What an expression's result is."""

    unit: str
    labels: frozenset[str]
    kind: str = "gauge"
    scalar: bool = False


FOREIGN: Final[Mapping[str, Series]] = {"up": Series("gauge", PLAIN, TARGET)}
"""What Prometheus adds of itself."""


def known(name: str, others: Mapping[str, Series]) -> Series:
    """A metric of the catalogue, of ``FOREIGN`` or of others. Raises Nonsense for an unknown
    name."""
    if name in others:
        return others[name]
    if name in FOREIGN:
        return FOREIGN[name]
    for suffix, kind in (("_bucket", "bucket"), ("_count", "counter"), ("_sum", "counter")):
        family = BY_NAME.get(name.removesuffix(suffix))
        if name.endswith(suffix) and family is not None and family.kind is Kind.HISTOGRAM:
            labels = TARGET | set(family.labels) | ({"le"} if kind == "bucket" else set())
            unit = "observations" if suffix == "_count" else _unit(family.unit)
            return Series(kind, unit, frozenset(labels))
    family = BY_NAME.get(name)
    if family is None or family.kind is Kind.HISTOGRAM:
        raise Nonsense(f"{name} is no metric")
    kind = "counter" if family.kind is Kind.COUNTER else "gauge"
    return Series(kind, _unit(family.unit), TARGET | frozenset(family.labels))


def _unit(unit: str) -> str:
    return "bytes" if unit == "physical offset, bytes" else unit


def metrics(expr: str) -> set[str]:
    """The names of all metrics in an expression."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, ast.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, ast.VectorSelector):
            found.add(str(node.name))

    ast.walk(ast.parse(expr), visit)
    return found


def numbers(expr: str) -> set[float]:
    """All literal numbers in an expression."""
    found: set[float] = set()

    def visit(node: Any) -> None:
        if isinstance(node, ast.NumberLiteral):
            found.add(node.val)

    ast.walk(ast.parse(expr), visit)
    return found


def yields(expr: str, others: Mapping[str, Series] | None = None) -> Yield:
    """Infer what expr results in. others: recorded series by name. Raises Nonsense."""
    return _Inference(others or {}).of(ast.parse(expr))


class _Inference:
    def __init__(self, others: Mapping[str, Series]) -> None:
        self._others = others

    def of(self, node: Any) -> Yield:
        match node:
            case ast.ParenExpr() | ast.UnaryExpr() | ast.SubqueryExpr():
                return self.of(node.expr)
            case ast.NumberLiteral():
                return Yield(ANY, frozenset(), scalar=True)
            case ast.VectorSelector():
                return self._selected(node)
            case ast.MatrixSelector():
                return self._selected(node.vector_selector)
            case ast.AggregateExpr():
                return self._aggregated(node)
            case ast.Call():
                return self._called(node)
            case ast.BinaryExpr():
                return self._combined(node)
        raise Nonsense(f"no rule for {node.prettify()}")

    def _selected(self, node: Any) -> Yield:
        if node.name is None:
            raise Nonsense("a selector without a name")
        series = known(node.name, self._others)
        for matcher in node.matchers.matchers:
            if matcher.name not in series.labels:
                raise Nonsense(f"{node.name} has no label {matcher.name}")
        return Yield(series.unit, series.labels, series.kind)

    def _aggregated(self, node: Any) -> Yield:
        of, how = self.of(node.expr), str(node.op)
        if of.kind == "counter" and how != "count":
            raise Nonsense(f"{how} of a counter itself, not of its rate: {node.prettify()}")
        if how in ("topk", "bottomk"):
            return of
        labels: frozenset[str] = frozenset()
        if node.modifier is not None:
            named = frozenset(node.modifier.labels)
            if named - of.labels:
                raise Nonsense(f"no label {', '.join(named - of.labels)} in {node.expr.prettify()}")
            by = node.modifier.type == ast.AggModifierType.By
            labels = named if by else of.labels - named
        unit = {"count": COUNT, "group": PLAIN}.get(how, of.unit)
        return Yield(unit, labels, of.kind if how != "count" else "gauge")

    def _called(self, node: Any) -> Yield:
        name = node.func.name
        if name == "time":
            return Yield("s", frozenset(), scalar=True)
        if name == "histogram_quantile":
            of = self.of(node.args[1])
            if of.kind != "bucket rate" or "le" not in of.labels:
                raise Nonsense(f"no buckets with le in {node.prettify()}")
            return Yield(of.unit, of.labels - {"le"})
        of = self.of(node.args[0])
        if name in _OF_COUNTERS:
            if of.kind == "bucket":
                return Yield(of.unit, of.labels, "bucket rate")
            if of.kind != "counter":
                raise Nonsense(f"{name} of what is no counter: {node.prettify()}")
            per_second = RATIO if of.unit == "s" else f"{of.unit}/s"
            return Yield(of.unit if name == "increase" else per_second, of.labels)
        if name in _OF_GAUGES:
            if of.kind != "gauge":
                raise Nonsense(f"{name} of a counter: {node.prettify()}")
            if name == "deriv":
                return Yield(RATIO if of.unit == "s" else f"{of.unit}/s", of.labels)
            return of
        if name in ("changes", "resets", "count_over_time"):
            return Yield(COUNT, of.labels)
        if name == "timestamp":
            return Yield("s", of.labels)
        if name in _KEEP:
            return of
        raise Nonsense(f"no rule for the function {name}")

    def _combined(self, node: Any) -> Yield:
        left, right, how = self.of(node.lhs), self.of(node.rhs), str(node.op)
        modifier = node.modifier
        unit = _unit_of(how, left, right, node)
        if modifier is not None and modifier.return_bool:
            unit = PLAIN
        if left.scalar or right.scalar:
            labels = left.labels | right.labels
            return Yield(unit, labels, scalar=left.scalar and right.scalar)
        matching = modifier.matching if modifier is not None else None
        if matching is None:
            if how == "or":
                return Yield(unit, left.labels | right.labels)
            if left.labels != right.labels:
                parted = ", ".join(sorted(left.labels ^ right.labels))
                raise Nonsense(f"sides never match for {parted}: {node.prettify()}")
            return Yield(unit, left.labels)
        on = frozenset(matching.labels)
        if matching.type == ast.LabelModifierType.Exclude:
            raise Nonsense(f"ignoring () breaks when a label comes: {node.prettify()}")
        if on - left.labels or on - right.labels:
            missing = ", ".join((on - left.labels) | (on - right.labels))
            raise Nonsense(f"no label {missing} on a side of {node.prettify()}")
        if how in _SETS:
            return Yield(unit, left.labels)
        extra = frozenset(modifier.group_labels or ())
        if modifier.card == ast.VectorMatchCardinality.ManyToOne:
            return Yield(unit, left.labels | extra)
        if modifier.card == ast.VectorMatchCardinality.OneToMany:
            return Yield(unit, right.labels | extra)
        return Yield(unit, on)


def _unit_of(how: str, left: Yield, right: Yield, node: Any) -> str:
    one, other = left.unit, right.unit
    if how in ("and", "unless", "^"):
        return one
    if how == "*":
        return _product(one, other, node)
    if how == "/":
        if one == other:
            return RATIO
        if other in (ANY, PLAIN, RATIO, COUNT):
            return one
        raise Nonsense(f"{one} by {other}: {node.prettify()}")
    if one != other and ANY not in (one, other) and {one, other} != {PLAIN, RATIO}:
        raise Nonsense(f"{one} {how} {other}: {node.prettify()}")
    if how in _COMPARING:
        return one
    return other if one == ANY else one


def _product(one: str, other: str, node: Any) -> str:
    literals = [side.val for side in (node.lhs, node.rhs) if isinstance(side, ast.NumberLiteral)]
    if literals == [0]:
        return ANY
    if literals == [1000] and "s" in (one, other):
        return MILLISECONDS
    for unit, factor in ((one, other), (other, one)):
        if factor == ANY or (factor in (PLAIN, RATIO) and unit != ANY):
            return unit
    raise Nonsense(f"{one} times {other}: {node.prettify()}")
