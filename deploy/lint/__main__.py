"""``python -m deploy.lint``: all checks of the manifests that need no cluster.

It runs in the environment of deploy/requirements.lock, which contains the tools. It prints every
finding; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml

from deploy.lint import policies, schemas
from deploy.lint.rendering import DEPLOY, NotRendered, rendered

TOOLS: Final = Path(sys.executable).parent
TIMEOUT_S: Final = 300
STEPS: Final = ("yamllint", "hadolint", "schemas", "policies")
"""Checks that can be selected; rendering is always done."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.lint")
    parser.add_argument("--deploy", type=Path, default=DEPLOY, help="the directory to check")
    parser.add_argument("--only", choices=STEPS, action="append", help="default: everything")
    arguments = parser.parse_args()
    findings = list(_findings(arguments.deploy.resolve(), arguments.only or STEPS))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} finding{'s' * (len(findings) != 1)}")
    sys.exit(1 if findings else 0)


def _findings(deploy: Path, steps: Collection[str]) -> Iterator[str]:
    dockerfile = deploy / "docker" / "Dockerfile"
    if "yamllint" in steps:
        yield from _tool(
            "yamllint", "--strict", "-c", deploy / "yamllint.yaml", *sorted(deploy.rglob("*.y*ml"))
        )
    if "hadolint" in steps:
        yield from _tool("hadolint", dockerfile)
    try:
        texts = rendered(deploy)
    except NotRendered as error:
        yield f"kustomize: {error}"
        return
    if "schemas" in steps:
        yield from _schemas(texts)
    if "policies" in steps:
        with tempfile.TemporaryDirectory(prefix="tidemark-policies-") as directory:
            files = [Path(directory) / f"{overlay}.yaml" for overlay in texts]
            for file in files:
                file.write_text(texts[file.stem])
            yield from policies.findings(TOOLS, deploy / "checkov.yaml", [*files, dockerfile])


def _schemas(texts: Mapping[str, str]) -> Iterator[str]:
    versions = schemas.newest_versions()
    print(f"{len(texts)} overlays, Kubernetes {', '.join(versions)}")
    seen: set[str] = set()
    for overlay, text in texts.items():
        for document in yaml.safe_load_all(text):
            if document is None or (same := json.dumps(document, sort_keys=True)) in seen:
                continue
            seen.add(same)
            named = f"{document['kind']}/{document['metadata']['name']}"
            for version in versions:
                for mistake in schemas.mistakes(document, version):
                    yield f"schema: {overlay}: {named}: Kubernetes {version}: {mistake}"


def _tool(name: str, *arguments: str | Path) -> Iterator[str]:
    """Run a tool that prints one finding per line, and yield its findings."""
    done = subprocess.run(
        [TOOLS / name, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"status {done.returncode}"]
        yield from (f"{name}: {line}" for line in said if line.strip())


if __name__ == "__main__":
    main()
