from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from drills.pods.environment import Placed
from drills.pods.objects import BadManifest
from drills.pods.plans import plan_pod
from drills.pods.volumes import ACCOUNT_VOLUME, CA_NAME, Volumes
from tests.unit.drills.pods import manifests

PLACED = Placed("uid-1", "10.0.0.7", "node-1", "10.9.9.9", {})


def volumes(tmp_path: Path, *, without_secret: bool = False, optional: bool = False) -> Volumes:
    """Volumes of a pod with this process's group: changing to another one needs root."""
    found = manifests.stateful_set()
    manifests.pod_spec(found)["securityContext"]["fsGroup"] = os.getgid()
    manifests.pod_spec(found)["volumes"][0]["emptyDir"] = {}
    manifests.pod_spec(found)["volumes"][1]["secret"]["optional"] = optional
    roots = {
        "kind": "ConfigMap",
        "metadata": {"name": CA_NAME, "namespace": manifests.NAMESPACE},
        "data": {"ca.crt": "certificate"},
    }
    objects = manifests.objects(roots)
    if without_secret:
        objects = type(objects)([one for one in objects if one["kind"] != "Secret"])
    plan = plan_pod(found, 0, "r1")
    return Volumes(plan, PLACED, objects, tmp_path / "pod", tmp_path / "claims", "token-1")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_links_to_files_that_only_the_group_reads(tmp_path: Path) -> None:
    made = volumes(tmp_path)
    made.make()
    secret = made.places["secret"] / "secret"
    assert secret.is_symlink()
    assert secret.read_bytes() == b"open sesame"
    assert mode_of(secret) == 0o440
    assert secret.stat().st_gid == os.getgid()


def test_an_account_is_a_token_a_certificate_and_a_namespace(tmp_path: Path) -> None:
    made = volumes(tmp_path)
    made.make()
    account = made.places[ACCOUNT_VOLUME]
    found = {name: (account / name).read_text() for name in ("token", "ca.crt", "namespace")}
    assert found == {"token": "token-1", "ca.crt": "certificate", "namespace": "shop"}
    assert mode_of(account / "token") == 0o640


def test_a_claim_belongs_to_the_group_and_stays(tmp_path: Path) -> None:
    made = volumes(tmp_path)
    made.make()
    claim = made.places["data"]
    assert claim == tmp_path / "claims" / "data-mark-g0-0"
    assert mode_of(claim) & 0o2770 == 0o2770
    (claim / "log").write_text("kept")
    made.remove()
    assert not (tmp_path / "pod" / "volumes").exists()
    again = volumes(tmp_path)
    again.make()
    assert (again.places["data"] / "log").read_text() == "kept"
    assert mode_of(again.places["data"] / "log") & 0o660 == 0o660


def test_a_secret_that_is_not_there_is_an_error_unless_it_is_optional(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match="there is no Secret key"):
        volumes(tmp_path, without_secret=True).make()
    made = volumes(tmp_path / "other", without_secret=True, optional=True)
    made.make()
    assert [path.name for path in made.places["secret"].glob("[!.]*")] == []
