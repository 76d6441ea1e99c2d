"""What kustomize makes of the overlays, in a copy of them. The tree itself is not written to.

The copy has a secret of its own, and overlays that people would make by one line: with a further
group, and with the components `monitoring` and `analytics-operator`. Used by ``python -m
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
"""The overlay without nodes, and the line that its other form is made by."""
OPERATOR_LINE: Final = (
    "  # With the Spark operator, one line more: - ../../components/analytics-operator\n"
)
COMPONENT_LINES: Final = "# components:\n#   - ../../components/monitoring\n"


class NotRendered(Exception):
    """Kustomize refuses an overlay, or is not there."""


@contextmanager
def copied(deploy: Path = DEPLOY) -> Iterator[Path]:
    """A copy of the manifests in which every overlay can be rendered; its directory ``deploy``."""
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
    """Names of the overlays below a directory ``deploy``."""
    return sorted(
        path.parent.name for path in (deploy / "k8s" / "overlays").glob("*/kustomization.yaml")
    )


def render(deploy: Path, overlay: str, command: Sequence[str] = KUBECTL) -> str:
    """One overlay as YAML. Raises NotRendered."""
    path = deploy / "k8s" / "overlays" / overlay
    try:
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise NotRendered(f"{command[0]} is not installed: {error}") from error
    # A warning is a failure: it is about what the next version will not take any more.
    if done.returncode or done.stderr.strip():
        raise NotRendered(f"{overlay}: {done.stderr.strip()}")
    return done.stdout


def rendered(deploy: Path = DEPLOY, command: Sequence[str] = KUBECTL) -> dict[str, str]:
    """All overlays, and those that people make of them, as YAML. Raises NotRendered."""
    with copied(deploy) as copy:
        return {overlay: render(copy, overlay, command) for overlay in overlays_of(copy)}


def _edit(overlays: Path, overlay: str, made: str, lines: str) -> None:
    """A copy of an overlay in which the lines, comments so far, count."""
    shutil.copytree(overlays / overlay, overlays / made)
    path = overlays / made / "kustomization.yaml"
    text = path.read_text()
    if lines not in text:
        raise NotRendered(f"{overlay}: the lines that people take the mark off are gone:\n{lines}")
    path.write_text(text.replace(lines, _effective(lines)))


def _effective(lines: str) -> str:
    """The lines without their marks: ``# `` at the beginning, or what stands before the colon."""
    bare = re.sub(r"# [A-Z][^:\n]*: (?=- )", "", lines)
    return re.sub(r"^# ", "", bare, flags=re.M)
