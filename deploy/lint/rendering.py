"""Renders the overlays with kustomize, in a copy. The original tree is not written to.

The copy has its own secret, and overlays that users would create by uncommenting a line: with one
more group, and with the components `monitoring` and `analytics-operator`. Used by ``python -m
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
FURTHER_GROUPS: Final = {
    "ha": ("ha-two-groups", "g1"),
    "prod": ("prod-two-groups", "g1"),
    "cluster": ("cluster-three-groups", "g2"),
}
"""Of overlays that may have further groups: name of the variant with one more, and the group."""
GROUP_LINE: Final = "  # A further group is one line: - ../../groups/{group}\n"
SHARED: Final = ("k8s", "prometheus", "grafana")
"""Directories that manifests refer to."""
ANALYTICS: Final = "analytics"
"""The overlay without nodes; OPERATOR_LINE creates its variant."""
OPERATOR_LINE: Final = (
    "  # With the Spark operator, one line more: - ../../components/analytics-operator\n"
)
COMPONENT_LINE: Final = (
    "  # Metrics, alerts and dashboards of the Prometheus operator: - ../../components/monitoring\n"
)


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
            if overlay in FURTHER_GROUPS:
                made, group = FURTHER_GROUPS[overlay]
                _edit(overlays, overlay, made, GROUP_LINE.format(group=group))
            _edit(overlays, overlay, f"{overlay}-monitoring", COMPONENT_LINE)
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


def _edit(overlays: Path, overlay: str, made: str, line: str) -> None:
    """Copy an overlay, and in the copy remove what precedes the entry in a comment."""
    shutil.copytree(overlays / overlay, overlays / made)
    path = overlays / made / "kustomization.yaml"
    text = path.read_text()
    if line not in text:
        raise NotRendered(f"{overlay}: the line that people take the mark off is gone:\n{line}")
    path.write_text(text.replace(line, re.sub(r"# [^:]*: (?=- )", "", line)))
