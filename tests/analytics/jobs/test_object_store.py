"""The pipeline on an S3 server that fails often, with a kill: the same rows as on a disk."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from analytics.errors import FileUnusable
from analytics.jobs.evaluate import COMPUTED
from analytics.jobs.landing import LANDED
from analytics.tables import TableRoot
from tests.support.evaluated_once import at_once
from tests.support.killed_jobs import command, killed, versions
from tests.support.object_store import ObjectStore, object_store
from tests.support.recorded_samples import record
from tests.support.table_rows import assert_collected, assert_same
from tests.truth import cases

pytestmark = pytest.mark.timeout(1800)
SECONDS = 300.0
SHARE = 0.03
PROJECT = Path(__file__).parents[3]


@pytest.fixture
def seed() -> int:
    found = int(os.environ.get("TIDEMARK_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {found}")
    return found


@pytest.fixture
def store(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store(tmp_path / "s3.log", SHARE, seed) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def finished(job: list[str], log: Path) -> None:
    """Run a job, and start it again as a supervisor does, until it has ended."""
    for _ in range(5):
        with log.open("ab") as out:
            done = subprocess.run(job, stdout=out, stderr=out, check=False, cwd=PROJECT)
        if done.returncode == 0:
            return
    raise AssertionError(log.read_text()[-3000:])


def test_tables_on_an_object_store_with_faults_have_the_rows_of_a_disk(
    store: ObjectStore, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    recorded, log = tmp_path / "recorded", tmp_path / "log"
    record([cases.slow_consumer(seconds=SECONDS), cases.failover(seconds=SECONDS)], recorded)
    for job, tables in (("collect", LANDED), ("evaluate", COMPUTED)):
        words = store.faulty + command(job, store.uri, tmp_path / job, recorded)
        killed(words, log, partial(versions, store.uri, tables), chance)
        finished(words, log)
    root = TableRoot(store.uri)
    assert_collected(root, recorded, 15.0)
    until = root.watermark("lag")
    assert until is not None
    stream = {name: root.read(name) for name in COMPUTED}
    for name, wanted in at_once(root, until).items():
        assert_same(stream[name], wanted, name)

    compact = [
        *store.faulty,
        sys.executable,
        "-m",
        "analytics.main",
        "compact",
        "--tables",
        store.uri,
    ]
    finished([*compact, "--keep", "lag=3650"], log)
    print(store.proxy.counts)
    assert all(store.proxy.counts.values()), "every kind of fault happened"


def test_a_store_that_does_not_answer_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(FileUnusable, match=r"s3://lag/tables/_root.json cannot be used: .*connect"):
        TableRoot("s3a://lag/tables")
