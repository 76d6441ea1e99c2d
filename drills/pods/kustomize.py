"""Render an overlay with ``kubectl kustomize``, like the users of the manifests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from drills.pods.api import NoTool
from drills.pods.objects import BadManifest, Manifest, Objects

MISSING: Final = (
    "kubectl is not installed, or older than 1.21: it renders the manifests "
    "(https://kubernetes.io/docs/tasks/tools/)"
)


def render(directory: Path) -> Objects:
    """Return the objects of an overlay. Raises NoTool, BadManifest."""
    if shutil.which("kubectl") is None:
        raise NoTool(MISSING)
    done = subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BadManifest(f"{directory} cannot be rendered: {done.stderr.strip()}")
    return Objects(parse(done.stdout))


def parse(text: str) -> list[Manifest]:
    """Return the documents of a YAML stream. Raises NoTool."""
    try:
        import yaml
    except ImportError:
        raise NoTool("PyYAML is not installed: pip install PyYAML") from None
    found: list[dict[str, Any]] = [one for one in yaml.safe_load_all(text) if one]
    return list(found)
