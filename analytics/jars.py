"""Fetches the jars of Delta Lake into the installed Spark: ``python -m analytics.jars``.

Spark's own resolver fetches them from Maven Central. The jobs need none of them: they are for
programs that read the tables through Spark (``spark.read.format("delta")``, ``TableRoot.frame``).
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

VERSION: Final = "4.4.0"
"""The newest Delta Lake; it supports Spark 4.2."""
JARS: Final[Mapping[str, str]] = {
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
}
"""SHA-256 by the name of the artifact. Spark has the rest of what they depend on."""
_IN_SPARK: Final = ("org.*", "com.*", "javax.*", "commons*", "io.airlift", "io.unitycatalog")
"""Groups of dependencies that are not fetched."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # By default 50 tasks read the log of a table, however small it is.
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""Settings of a session that uses the jars."""


def directory() -> Path:
    """Return the directory of Spark's jars."""
    return Path(pyspark.__file__).parent / "jars"


def are_there() -> bool:
    """Whether Spark has the jars."""
    return all((directory() / f"{name}-{VERSION}.jar").exists() for name in JARS)


def fetch() -> None:
    """Fetch the jars and check them. Raises PySparkRuntimeError without a network, ValueError for
    a file with another hash."""
    with tempfile.TemporaryDirectory() as cache:
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.jars.packages", ",".join(f"io.delta:{name}:{VERSION}" for name in JARS))
            .config("spark.jars.excludes", ",".join(f"{group}:*" for group in _IN_SPARK))
            .config("spark.jars.ivy", cache)
            .getOrCreate()
        )
        spark.stop()
        for name, digest in JARS.items():
            fetched = Path(cache) / "jars" / f"io.delta_{name}-{VERSION}.jar"
            found = hashlib.sha256(fetched.read_bytes()).hexdigest()
            if found != digest:
                raise ValueError(f"{fetched.name} has the SHA-256 {found}, not {digest}")
            shutil.copyfile(fetched, directory() / f"{name}-{VERSION}.jar")


def main() -> int:
    """Fetch what is missing; return the exit status."""
    if are_there():
        return 0
    try:
        fetch()
    except (PySparkRuntimeError, OSError, ValueError) as error:
        print(f"The jars of Delta Lake could not be fetched: {error}", file=sys.stderr)
        print('Jobs work without them; `spark.read.format("delta")` does not.', file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
