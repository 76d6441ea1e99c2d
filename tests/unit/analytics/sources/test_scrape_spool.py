"""Targets, the spool, and the content of a spooled file: whole, once, or a gap."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from analytics.schema import SAMPLES, Gap
from analytics.sources.gaps import Unanswered, split
from analytics.sources.http import fetch
from analytics.sources.option_values import BadOption
from analytics.sources.scrape import options, targets
from analytics.sources.scrape.reader import samples
from analytics.sources.scrape.spool import Scraped, Spool, SpoolInUse, SpoolWriter, read
from analytics.sources.scrape.targets import Target

TARGET = Target("http://h:1/metrics", (("broker", "g0"), ("cluster", "c"), ("instance", "h:1")))


def scraped(body: str, *, at_us: int = 5_000_000, openmetrics: bool = False) -> Scraped:
    return Scraped(TARGET, at_us, at_us - 1_000_000, body.encode(), openmetrics)


def content(path: Path) -> tuple[list[tuple[str, float]], list[dict[str, object]]]:
    found, gaps = split(pa.Table.from_batches(list(samples(path)), schema=SAMPLES))
    return (
        [(row["metric"], row["value"]) for row in found.to_pylist()],
        gaps.to_pylist(),
    )


def test_targets_are_those_of_prometheus_lists() -> None:
    text = json.dumps(
        [
            {"targets": ["h:1", "h:2"], "labels": {"cluster": "c", "broker": "g0"}},
            {"targets": ["https://k/m"], "labels": {"cluster": "c"}},
            {"targets": ["l:3"], "labels": {"__metrics_path__": "/x", "__scheme__": "https"}},
        ]
    )
    found = targets.parse(text)
    assert [(each.url, each.instance, each.set_name) for each in found] == [
        ("http://h:1/metrics", "h:1", "c/g0"),
        ("http://h:2/metrics", "h:2", "c/g0"),
        ("https://k/m", "k", "c/"),
        ("https://l:3/x", "l:3", "/"),
    ]


@pytest.mark.parametrize("text", ["", "[", "{}x", '["h:1"]', '[{"labels": {}}]', "3"])
def test_a_list_that_is_none_is_a_mistake(text: str) -> None:
    with pytest.raises(BadOption, match="Option targets"):
        targets.parse(text)


@pytest.mark.parametrize(
    "address", ["host:port", "a b:80", "host:0", ":80", "b\u00fcro:80", "ftp://h"]
)
def test_an_address_that_cannot_be_asked_is_a_mistake(address: str) -> None:
    # One of them in the list of targets ended the scraping of all others.
    with pytest.raises(BadOption, match=r"Option targets .*(not an address|[Pp]ort)"):
        targets.parse(json.dumps([{"targets": [address]}]))


def test_a_host_that_is_no_name_is_a_gap() -> None:
    with pytest.raises(Unanswered, match="unreachable"):
        fetch("http://a..b:80/", timeout_s=1.0, size_max=1, headers={})


def test_an_address_twice_is_a_mistake() -> None:
    text = '[{"targets": ["h:1"], "labels": {"a": "b"}}, {"targets": ["h:1"]}]'
    with pytest.raises(BadOption, match="each address once"):
        targets.parse(text)


def test_options_have_targets_and_interval(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text('[{"targets": ["h:1"]}]')
    found = options.parse({"targets": str(path), "spool": "s", "interval": "10s", "timeout": "9s"})
    assert (found.interval_s, found.timeout_s) == (10.0, 5.0)
    assert [each.instance for each in found.read_targets()] == ["h:1"]
    with pytest.raises(BadOption, match="readable file"):
        options.parse({"targets": str(tmp_path / "none"), "spool": "s"})
    with pytest.raises(BadOption, match="Option spool"):
        options.parse({"targets": "[]"})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    samples = [
        scraped("m 1\n" * 1000),
        Scraped(TARGET, 7, 3, b"", False, Gap.TIMEOUT, 'no "answer"\n'),
        scraped("", openmetrics=True),
    ]
    with_lock = SpoolWriter(tmp_path)
    made = with_lock.write(samples, 5000)
    assert list(read(made.path)) == samples
    assert with_lock.files() == [made]
    assert (made.number, made.at_ms) == (1, 5000)
    with_lock.close()


def test_numbers_go_on_after_a_restart_and_after_an_offset(tmp_path: Path) -> None:
    first = SpoolWriter(tmp_path)
    first.write([scraped("m 1\n")], 5000)
    first.close()
    second = SpoolWriter(tmp_path)
    assert second.write([scraped("m 2\n")], 6000).number == 2
    second.skip_to(500)
    assert second.write([scraped("m 3\n")], 7000).number == 501
    second.skip_to(3)
    assert second.write([scraped("m 4\n")], 8000).number == 502
    second.close()


def test_a_writer_that_was_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    (tmp_path / "000000000001-0000000005000.part").write_bytes(b"half")
    assert Spool(tmp_path).files() == []
    writer = SpoolWriter(tmp_path)
    assert not list(tmp_path.glob("*.part"))
    assert writer.write([scraped("m 1\n")], 5000).number == 1
    writer.close()


def test_one_writes_at_a_time(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    with pytest.raises(SpoolInUse, match="spool of its own"):
        SpoolWriter(tmp_path, wait_s=0.2)
    writer.close()
    SpoolWriter(tmp_path, wait_s=0.2).close()


def test_what_is_read_and_old_goes_and_the_newest_stays(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    for second in range(1, 6):
        writer.write([scraped("m 1\n")], second * 1000)
    writer.forget(up_to=3, before_ms=3000)
    assert [each.number for each in writer.files()] == [3, 4, 5]
    writer.forget(up_to=5, before_ms=9000)
    assert [each.number for each in writer.files()] == [5]
    writer.close()


def test_a_file_becomes_samples_and_gaps(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    made = writer.write(
        [
            scraped('m{queue="1"} 1\n# EOF\n', openmetrics=True),
            Scraped(TARGET, 5_000_000, 2_000_000, b"", False, Gap.TIMEOUT, "no answer"),
        ],
        5000,
    )
    rows, (gap,) = content(made.path)
    assert rows == [("m", 1.0)]
    assert (gap["source"], gap["subject"], gap["reason"], gap["detail"], gap["rows_lost"]) == (
        "scrape", "h:1", "timeout", "no answer", None,
    )  # fmt: skip
    assert (str(gap["from_ts"]), str(gap["to_ts"])) == (
        "1970-01-01 00:00:02+00:00", "1970-01-01 00:00:05+00:00",
    )  # fmt: skip
    writer.close()


@pytest.mark.parametrize(
    ("body", "openmetrics", "reason"),
    [("m 1\nm", False, "torn"), ("m 1\n", True, "torn"), ("", False, "torn")],
)
def test_an_answer_that_was_cut_off_is_dropped_as_a_whole(
    tmp_path: Path, *, body: str, openmetrics: bool, reason: str
) -> None:
    writer = SpoolWriter(tmp_path)
    made = writer.write([scraped(body, openmetrics=openmetrics)], 5000)
    rows, (gap,) = content(made.path)
    assert (rows, gap["reason"]) == ([], reason)
    writer.close()


def test_unreadable_lines_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    made = writer.write([scraped("m 1\nwhat is this\nm two\nn 3\n")], 5000)
    rows, (gap,) = content(made.path)
    assert rows == [("m", 1.0), ("n", 3.0)]
    assert (gap["reason"], gap["rows_lost"]) == ("damaged", 2)
    assert "like 'what is this'" in str(gap["detail"])
    writer.close()


def test_bytes_that_are_no_text_are_a_gap(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    made = writer.write([Scraped(TARGET, 5, 3, b"m 1\n\xff\n", False)], 5000)
    rows, (gap,) = content(made.path)
    assert (rows, gap["reason"]) == ([], "damaged")
    writer.close()


def test_a_file_that_is_gone_or_cut_anywhere_is_a_gap_and_no_crash(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    made = writer.write([scraped("m 1\n"), scraped("n 2\n")], 5000)
    writer.close()
    whole = made.path.read_bytes()
    for cut in range(1, len(whole)):
        made.path.write_bytes(whole[:cut])
        rows, gaps = content(made.path)
        assert rows in ([], [("m", 1.0)])
        if _ends_between(whole, cut):
            assert (rows, gaps) == ([("m", 1.0)], []), cut
        else:
            assert [gap["reason"] for gap in gaps] == ["damaged"], cut
    made.path.unlink()
    rows, (gap,) = content(made.path)
    assert (rows, gap["reason"], gap["subject"]) == ([], "vanished", made.path.name)
    assert str(gap["from_ts"]) == "1970-01-01 00:00:05+00:00"


def _ends_between(whole: bytes, cut: int) -> bool:
    """Exactly between two scrapes: only the file's name shows it, which the renaming ensures."""
    return whole[cut:].startswith(b'{"url"')
