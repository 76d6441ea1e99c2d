"""Renders the overlays with kustomize, in a copy. The original tree is not written to.

The copy has its own secret, and overlays that users would create by uncommenting a line: with a
second group, and with the components `monitoring` and `analytics-operator`. Used by ``python -m
deploy.lint`` and by tests.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DEPLOY: Final = Path(__file__).resolve().parents[1]
KUBECTL: Final = ("kubectl", "kustomize")
TIMEOUT_S: Final = 60
GROUPED: Final = frozenset({"ha", "prod"})
GROUP_LINE: Final = "  # A further group is one line: - ../../groups/g1\n"
SHARED: Final = ("k8s", "prometheus", "grafana")
"""Directories that manifests refer to."""
ANALYTICS: Final = "analytics"
"""The overlay without nodes; OPERATOR_LINE creates its variant."""
OPERATOR_LINE: Final = (
    "  # With the Spark operator, one line more: - ../../components/analytics-operator\n"
)
COMPONENT_LINES: Final = "# components:\n#   - ../../components/monitoring\n"


class NotRendered(Exception):
    """Kustomize refuses an overlay, or is not installed."""


@contextmanager
def copied(deploy: Path = DEPLOY) -> Iterator[Path]:
    """Copy the manifests so that every overlay can be rendered; yields the directory ``deploy``."""
    with tempfile.TemporaryDirectory(prefix="tidemark-deploy-") as directory:
        copy = Path(directory) / "deploy"
        for name in SHARED:
            if (deploy / name).is_dir():
                shutil.copytree(
                    deploy / name, copy / name, ignore=shutil.ignore_patterns("secret.key")
                )
        overlays = copy / "k8s" / "overlays"
        (overlays / "ha" / "secret.key").write_text(secrets.token_hex(32))
        for overlay in overlays_of(copy):
            if overlay == ANALYTICS:
                _edit(overlays, overlay, f"{overlay}-operator", OPERATOR_LINE)
                continue
            if overlay in GROUPED:
                _edit(overlays, overlay, f"{overlay}-two-groups", GROUP_LINE)
            _edit(overlays, overlay, f"{overlay}-monitoring", COMPONENT_LINES)
        yield copy


def overlays_of(deploy: Path) -> list[str]:
    return sorted(
        path.parent.name for path in (deploy / "k8s" / "overlays").glob("*/kustomization.yaml")
    )


def render(deploy: Path, overlay: str, command: Sequence[str] = KUBECTL) -> str:
    """Render one overlay as YAML. Raises NotRendered."""
    path = deploy / "k8s" / "overlays" / overlay
    try:
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise NotRendered(f"{command[0]} is not installed: {error}") from error
    # A warning counts as a failure: it announces what the next version will refuse.
    if done.returncode or done.stderr.strip():
        raise NotRendered(f"{overlay}: {done.stderr.strip()}")
    return done.stdout


def rendered(deploy: Path = DEPLOY, command: Sequence[str] = KUBECTL) -> dict[str, str]:
    """Render all overlays, and the variants of the copy, as YAML. Raises NotRendered."""
    with copied(deploy) as copy:
        return {overlay: render(copy, overlay, command) for overlay in overlays_of(copy)}


def _edit(overlays: Path, overlay: str, made: str, lines: str) -> None:
    """Copy an overlay and uncomment the lines in the copy."""
    shutil.copytree(overlays / overlay, overlays / made)
    path = overlays / made / "kustomization.yaml"
    text = path.read_text()
    if lines not in text:
        raise NotRendered(f"{overlay}: the lines that people take the mark off are gone:\n{lines}")
    path.write_text(text.replace(lines, _effective(lines)))


def _effective(lines: str) -> str:
    """Uncomment lines: remove ``# `` at the beginning, or the text before the colon."""
    bare = re.sub(r"# [A-Z][^:\n]*: (?=- )", "", lines)
    return re.sub(r"^# ", "", bare, flags=re.M)
