"""A workload's scrapes as the table of samples that the sources make of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from analytics import schema
from tests.truth.samples import lines, targets
from tests.truth.steps import MILLISECOND
from tests.truth.workload import SCRAPE_AFTER_SAMPLE, Truth


def samples_table(truth: Truth) -> pa.Table:
    """Every sample of every target at the ticks that were heard of, of schema SAMPLES."""
    sample_times = truth.sample_times()
    stamps = (sample_times + SCRAPE_AFTER_SAMPLE) // MILLISECOND * MILLISECOND
    made = [schema.SAMPLES.empty_table()]
    for of in targets(truth):
        added = of.labels(truth.cluster)
        for line in lines(truth, of, sample_times):
            there = ~np.isnan(line.values)
            size = int(there.sum())
            if not size:
                continue
            others = ",".join(
                f'{name}="{value}"'
                for name, value in sorted(line.labels.items())
                if name not in {"group", "topic", "queue"}
            )
            columns: dict[str, object] = {
                "ts": pa.array(stamps[there]),
                "source": ["scrape"] * size,
                "target": [added["instance"]] * size,
                "metric": [line.family] * size,
                "cluster": [added["cluster"]] * size,
                "broker": [added["broker"]] * size,
                "replica": [added["replica"]] * size,
                "service": [added["service"]] * size,
                "labels": [others] * size,
                "value": pa.array(line.values[there]),
            }
            for name in ("group", "topic"):
                if name in line.labels:
                    columns[name] = [line.labels[name]] * size
            if "queue" in line.labels:
                columns["queue"] = [int(line.labels["queue"])] * size
            made.append(schema.fit(pa.table(columns), schema.SAMPLES))
    return pa.concat_tables(made)
