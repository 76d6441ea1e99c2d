"""One Spark session for all tests of a worker, which starts it once: five seconds and 0.5 GB.

A test module requests it by importing the fixture, and is marked
``pytestmark = pytest.mark.xdist_group("spark")``: then one worker runs all of them, and a machine
with two workers has one JVM.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.session import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores of this machine, 1 GiB of heap, no UI; stopped at the end."""
    place: Path = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j's sockets, closed by their JVM
        started = session(
            "tests",
            master="local[2]",
            buckets=4,
            driver_memory="1g",
            extra={
                "spark.sql.warehouse.dir": str(place / "warehouse"),
                "spark.local.dir": str(place / "local"),
                "spark.log.level": "ERROR",
            },
        )
    yield started
    started.stop()
