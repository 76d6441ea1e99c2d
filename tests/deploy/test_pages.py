"""Commands of the pages on Kubernetes: run where no cluster is needed, or held to the manifests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.manifests import overlays
from tests.support.page_commands import NEEDS, blocks, commands, missing_paths, mistakes

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [ROOT / "docs" / name for name in ("kubernetes.md", "upgrading.md")]


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_commands_that_need_nothing_run_as_they_stand(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        project.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    ignored = shutil.ignore_patterns("secret.key", "__pycache__")
    shutil.copytree(ROOT / "deploy", project / "deploy", ignore=ignored)
    found = [block for block in blocks(PAGES[0]) if block.needs == ""]
    assert len(found) == 2
    for block in found:
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", block.text],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-500:]}{done.stderr[-2000:]}"
        assert "kind: StatefulSet" in done.stdout
    assert "name: tidemark-g7\n" in done.stdout, "the last block makes a group"
    mode = (project / "deploy/k8s/overlays/ha/secret.key").stat().st_mode
    assert mode & 0o077 == 0


def test_every_block_says_what_it_needs(page: Path) -> None:
    assert {block.needs for block in blocks(page)} <= NEEDS
    assert len(commands(page, "cluster")) >= 5


def test_commands_for_a_cluster_name_what_the_manifests_have(page: Path) -> None:
    objects = overlays()["ha-monitoring"]
    found = {line: mistakes(line, objects, ROOT) for line in commands(page, "cluster")}
    assert {line: wrong for line, wrong in found.items() if wrong} == {}


def test_commands_for_a_cluster_of_groups_name_what_the_manifests_have() -> None:
    objects = overlays()["cluster"]
    found = {line: mistakes(line, objects, ROOT) for line in commands(PAGES[0], "groups")}
    assert len(found) == 7
    assert {line: wrong for line, wrong in found.items() if wrong} == {}


def test_commands_for_this_machine_are_targets_of_make(page: Path) -> None:
    targets = (ROOT / "Makefile").read_text()
    for needs in ("root", "image"):
        for line in commands(page, needs):
            program, target, *_ = line.split()
            assert program == "docker" or f"\n{target}:" in targets, line


def test_files_that_a_page_names_are_there(page: Path) -> None:
    assert missing_paths(page, ROOT) == []


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("kubectl -n tidemark exec tidemark-g0-0 -c ha -- tidemark cluster status", None),
        ("echo x | kubectl -n tidemark exec -i tidemark-g0-1 -c ha -- tidemark produce t", None),
        ("kubectl -n tidemark exec tidemark-g0-7 -c ha -- tidemark lag", "no pod tidemark-g0-7"),
        ("kubectl -n tidemark exec tidemark-g0-0 -c proxy -- tidemark lag", "no container proxy"),
        ("kubectl -n tidemark exec tidemark-g0-0 -c ha -- tidemark cluster stat", "no command"),
        ("kubectl -n tidemark exec tidemark-g0-0 -c ha -- tidemark topic create", "NAME"),
        ("kubectl -n tidemark exec tidemark-g0-0 -c ha -- sh", "no sh in the image"),
        ("kubectl -n rocketmq get pods", "no namespace rocketmq"),
        ("kubectl apply -k deploy/k8s/overlays/huge", "no deploy/k8s/overlays/huge"),
        ("kubectl -n tidemark rollout status statefulset/tidemark", "no statefulset tidemark"),
        ("kubectl -n tidemark delete pod tidemark-g0-0 --wait=false", None),
        ("kubectl -n tidemark delete pod -l role=leader", "label role=leader"),
        ("kubectl -n tidemark delete pvc data-tidemark-g3-0", "no pvc data-tidemark-g3-0"),
        ("helm install tidemark", "helm is not kubectl"),
    ],
)
def test_a_command_that_names_something_else_is_reported(line: str, mistake: str | None) -> None:
    found = mistakes(line, overlays()["ha"], ROOT)
    assert found == [] if mistake is None else mistake in found[0]
