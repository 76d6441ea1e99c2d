from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("aiokafka")

from bench import client


async def numbers(passed: list[int]) -> AsyncIterator[int]:
    for number in range(10):
        passed.append(number)
        yield number


async def test_a_reader_handles_as_many_messages_as_it_shall() -> None:
    passed: list[int] = []
    await client.handle(numbers(passed), 4)
    assert passed == [0, 1, 2, 3]


def test_an_outcome_counts_all_handled_messages() -> None:
    assert client.until_now(0.0, 0.0, 4).messages == 4


def test_goals_are_for_our_best_and_baselines_have_the_same_set_up() -> None:
    servers = ("Tidemark", client.AIOKAFKA)
    names = [
        client.job_name(call, server, kind)
        for call in client.GOALS
        for server in servers
        for kind in client.LOOPS
    ]
    rates = {name: [float(number)] for number, name in enumerate(names, start=1)}
    cpu_us = {name: [99.0, 2 * number] for name, (number,) in rates.items()}  # with a warm-up
    found = {figure.what: figure for figure in client.figures(rates, cpu_us)}
    for call, goal in client.GOALS.items():
        best, theirs = f"{call}, Tidemark, best", f"{call}, aiokafka, best"
        assert (found[best].goal, found[best].baseline) == (goal, theirs)
        assert found[best].baseline_values == rates[theirs]
        assert found[f"{call}, Tidemark, defaults"].goal is None
        assert found[theirs].goal is None
        assert found[theirs].ratio is None
        cpu = found[f"CPU time of the client per message, {best}"]
        assert (cpu.values, cpu.baseline_values) == (cpu_us[best][1:], cpu_us[theirs][1:])
        assert not cpu.more_is_better


def test_without_kafka_there_are_no_baselines() -> None:
    name = client.job_name("send", "Tidemark", "best")
    rate, cpu = client.figures({name: [1.0]}, {name: [5.0]})
    assert (rate.ratio, cpu.ratio) == (None, None)
