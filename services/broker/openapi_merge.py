"""One OpenAPI document of the parts that the modules of calls say about themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Schema = dict[str, Any]


class Fragment(NamedTuple):
    """What a module says about its calls."""

    paths: Mapping[str, Mapping[str, Any]]
    """Path → method → call."""
    schemas: Mapping[str, Any]
    """By name."""


def merged(document: Schema, *fragments: Fragment) -> Schema:
    """The document with the fragments in it.

    A path may be spoken for by several of them, each with other methods. Raises ValueError if two
    describe the same call, or give the same name to different schemas.
    """
    paths = {path: dict(calls) for path, calls in document["paths"].items()}
    schemas = dict(document["components"]["schemas"])
    for fragment in fragments:
        for path, calls in fragment.paths.items():
            known = paths.setdefault(path, {})
            if twice := known.keys() & calls.keys():
                raise ValueError(f"{path} is described twice: {', '.join(sorted(twice))}")
            known.update(calls)
        for name, schema in fragment.schemas.items():
            if schemas.setdefault(name, schema) != schema:
                raise ValueError(f"two schemas are named {name}")
    return {
        **document,
        "paths": paths,
        "components": {**document["components"], "schemas": schemas},
    }
