"""Objects of rendered manifests by kind and name. Pure."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

Manifest = Mapping[str, Any]
"""An object as parsed from YAML or JSON."""

DEFAULT_NAMESPACE: Final = "default"
_SUFFIXES: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY: Final = re.compile(r"([0-9.]+)([a-zA-Z]*)")


class BadManifest(Exception):
    """A manifest refers to a missing object, or needs a feature that is not supported here."""


class Objects:
    """The objects that ``kubectl apply`` would send, by kind, namespace and name."""

    def __init__(self, documents: Iterable[Manifest]) -> None:
        """Raises BadManifest for a duplicate object."""
        self._found: dict[tuple[str, str, str], Manifest] = {}
        for document in documents:
            if not document:
                continue
            key = (document["kind"], namespace_of(document), document["metadata"]["name"])
            if key in self._found:
                raise BadManifest(f"{' '.join(key)} is there twice")
            self._found[key] = document

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._found.values())

    def of_kind(self, kind: str, namespace: str | None = None) -> list[Manifest]:
        return [
            found
            for (its_kind, its_namespace, _), found in self._found.items()
            if its_kind == kind and namespace in (None, its_namespace)
        ]

    def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return one object; None if it does not exist."""
        return self._found.get((kind, namespace, name))

    def get(self, kind: str, namespace: str, name: str) -> Manifest:
        """Return one object. Raises BadManifest."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise BadManifest(f"there is no {kind} {name} in namespace {namespace}")
        return found


def changed(
    objects: Objects, change: Callable[[dict[str, Any]], None], kind: str, name: str = ""
) -> Objects:
    """Return the same objects with those of a kind changed. name: name of the only one to change;
    "": all."""
    copies = [copy.deepcopy(dict(found)) for found in objects]
    for found in copies:
        if found["kind"] == kind and name in ("", found["metadata"]["name"]):
            change(found)
    return Objects(copies)


def namespace_of(document: Manifest) -> str:
    """Return the namespace of an object; empty for cluster-wide kinds."""
    if document["kind"] in ("Namespace", "ClusterRole", "ClusterRoleBinding"):
        return ""
    return str(document["metadata"].get("namespace") or DEFAULT_NAMESPACE)


def selects(selector: Manifest | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches; an empty one matches everything, None nothing."""
    if selector is None:
        return False
    for name, value in (selector.get("matchLabels") or {}).items():
        if labels.get(name) != value:
            return False
    for expression in selector.get("matchExpressions") or ():
        name, values = expression["key"], expression.get("values") or ()
        match expression["operator"]:
            case "In":
                holds = labels.get(name) in values
            case "NotIn":
                holds = labels.get(name) not in values
            case "Exists":
                holds = name in labels
            case "DoesNotExist":
                holds = name not in labels
            case other:
                raise BadManifest(f"a selector has the operator {other}")
        if not holds:
            return False
    return True


def quantity(text: object) -> Fraction:
    """Parse ``500m`` or ``2Gi`` as a number of cores or bytes. Raises BadManifest."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[2] not in _SUFFIXES:
        raise BadManifest(f"{text!r} is not a quantity")
    return Fraction(found[1]) * _SUFFIXES[found[2]]


def revision_of(template: Manifest) -> str:
    """Return a short hash of a pod template, as in ``controller-revision-hash``."""
    text = json.dumps(template, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
