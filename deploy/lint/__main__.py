"""``python -m deploy.lint``: everything that can be said of the manifests without a cluster.

Runs in the environment of deploy/requirements.lock, which holds the tools. Every finding is
printed; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from deploy.lint import policies, schemas
from deploy.lint.rendering import DEPLOY, NotRendered, rendered

TOOLS: Final = Path(sys.executable).parent
TIMEOUT_S: Final = 300


def main() -> None:
    """Check, print, end with 0 or 1."""
    parser = argparse.ArgumentParser(prog="python -m deploy.lint")
    parser.add_argument("--deploy", type=Path, default=DEPLOY, help="the directory to check")
    deploy = parser.parse_args().deploy.resolve()
    findings = list(_findings(deploy))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} finding{'s' * (len(findings) != 1)}")
    sys.exit(1 if findings else 0)


def _findings(deploy: Path) -> Iterator[str]:
    yield from _tool("yamllint", "--strict", "-c", deploy / "yamllint.yaml", *_yaml_of(deploy))
    dockerfile = deploy / "docker" / "Dockerfile"
    yield from _tool("hadolint", dockerfile)
    try:
        texts = rendered(deploy)
    except NotRendered as error:
        yield f"kustomize: {error}"
        return
    versions = schemas.newest_versions()
    print(f"{len(texts)} overlays, Kubernetes {', '.join(versions)}")
    for overlay, text in texts.items():
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
        for document in documents:
            named = f"{document['kind']}/{document['metadata']['name']}"
            for version in versions:
                for mistake in schemas.mistakes(document, version):
                    yield f"schema: {overlay}: {named}: Kubernetes {version}: {mistake}"
    with tempfile.TemporaryDirectory(prefix="tidemark-policies-") as directory:
        files = []
        for overlay, text in texts.items():
            file = Path(directory) / f"{overlay}.yaml"
            file.write_text(text)
            files.append(file)
        yield from policies.findings(TOOLS, deploy / "checkov.yaml", [*files, dockerfile])


def _yaml_of(deploy: Path) -> list[Path]:
    return sorted(path for path in deploy.rglob("*.y*ml") if "node_modules" not in path.parts)


def _tool(name: str, *arguments: str | Path) -> Iterator[str]:
    """What a tool that prints one finding per line has to say."""
    done = subprocess.run(
        [TOOLS / name, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"status {done.returncode}"]
        yield from (f"{name}: {line}" for line in said if line.strip())


if __name__ == "__main__":
    main()
