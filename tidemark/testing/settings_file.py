"""Formats settings of a service as TOML. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def toml(values: Mapping[str, object]) -> str:
    """Return settings as TOML: scalars and lists, then one table per map. None is omitted."""
    lines = [
        f"{name} = {json.dumps(str(value) if isinstance(value, Path) else value)}"
        for name, value in values.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", toml(value)]
    return "\n".join(lines) + "\n"
