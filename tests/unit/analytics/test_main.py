from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from analytics.errors import BadOption, TablesMissing
from analytics.jobs.compact import days_by_table
from analytics.jobs.evaluate import opened, rules_of
from analytics.jobs.options import MOMENT, looked_up, pairs, whole_hours
from analytics.main import JOBS, jobs, main
from analytics.tables import Location, TableRoot
from tidemark.errors import TidemarkError


@pytest.mark.parametrize("job", JOBS)
def test_every_job_is_a_command_that_explains_itself(job: str) -> None:
    done = CliRunner().invoke(jobs, [job, "--help"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "--tables" in done.output


def test_report_and_export_run_without_spark() -> None:
    code = "import sys\nfrom analytics.main import jobs\n" + "".join(
        f"jobs.get_command(None, {job!r})\n" for job in ("report", "export")
    )
    code += "sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_error_is_one_message_with_code_path_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nothing"
    monkeypatch.setattr(sys, "argv", ["x", "compact", "--tables", str(missing)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith(f"[tables-missing] {missing} holds no tables")
    assert "tidemark-analytics collect --tables DIR" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("uri", ["s3a://bucket/tables", "hdfs://h:9000/t", "file:///data/tables"])
@pytest.mark.parametrize(
    "given",
    [
        ["report", "--tables", "DIR", "--out", "URI"],
        ["export", "--tables", "DIR", "--openmetrics", "URI"],
        ["evaluate", "--tables", "DIR", "--checkpoint", "URI"],
        ["collect", "--tables", "DIR", "--checkpoint", "URI", "--source", "scrape"],
    ],
    ids=" ".join,
)
def test_a_uri_is_refused_and_makes_no_folder_of_its_name(
    uri: str,
    given: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A folder called "s3a:" was made, and success reported.
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "tables")
    named = [uri if word == "URI" else here if word == "DIR" else word for word in given]
    monkeypatch.setattr(sys, "argv", ["x", *named])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"[analytics-not-local] {uri} is a URI")
    assert list(tmp_path.iterdir()) == []


def test_tables_are_opened_by_a_path_its_text_or_its_uri(tmp_path: Path) -> None:
    made = TableRoot.create(str(tmp_path / "tables"))
    for given in (tmp_path / "tables", f"file://{tmp_path}/tables", f"{tmp_path}/tables/"):
        assert TableRoot(given).uri == made.uri == str(tmp_path / "tables")


@pytest.mark.parametrize("given", ["s3a://bucket/tables/", Path("s3://bucket/tables")])
def test_names_of_hadoop_and_of_paths_mean_the_same_object_store(given: str | Path) -> None:
    assert Location.of(given).uri == "s3://bucket/tables"
    assert Location.of(given).for_spark == "s3a://bucket/tables"
    assert not Location.of(given).is_local


def test_a_directory_that_cannot_be_written_is_one_message_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    TableRoot.create(tmp_path / "tables")
    out = tmp_path / "file" / "report"
    given = ["x", "report", "--tables", str(tmp_path / "tables"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(
        f"[analytics-file] {out / 'report.json'} cannot be used: Not a directory."
    )


def test_logins_come_from_variables_and_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("Bearer x\n")
    asked = {"url": "env:URL", "header.Authorization": f"file:{secret}", "slice": "30m"}
    assert looked_up(asked, {"URL": "http://a:b@host"}) == {
        "url": "http://a:b@host", "header.Authorization": "Bearer x", "slice": "30m",
    }  # fmt: skip
    with pytest.raises(BadOption, match="there is no variable URL"):
        looked_up({"url": "env:URL"}, {})
    with pytest.raises(BadOption, match=r"nothing cannot be read \(.*No such file"):
        looked_up({"url": f"file:{tmp_path}/nothing"}, {})


def test_times_are_read_with_and_without_a_zone() -> None:
    wanted = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    for text in ("2026-01-31T09:30", "2026-01-31T10:30+01:00", str(int(wanted.timestamp()))):
        assert MOMENT.convert(text, None, None) == wanted
    with pytest.raises(click.BadParameter, match=r"'soon' is not a time"):
        MOMENT.convert("soon", None, None)


def test_bad_options_are_named_with_value_and_bounds(tmp_path: Path) -> None:
    hour = datetime(2026, 1, 31, 9, tzinfo=UTC)
    with pytest.raises(BadOption, match=r"'url' is not KEY=VALUE"):
        pairs(("url",), "--option")
    with pytest.raises(BadOption, match="belong together"):
        whole_hours(hour, None)
    with pytest.raises(BadOption, match="is not before"):
        whole_hours(hour, hour)
    with pytest.raises(BadOption, match="days must be from 1 to 3650"):
        days_by_table(("lag=0",))
    with pytest.raises(BadOption, match="names table 'lags'"):
        days_by_table(("lags=3",))
    rules = tmp_path / "rules.json"
    rules.write_text('{"objective": 3}')
    with pytest.raises(BadOption, match="no rule is called objective"):
        rules_of(15.0, scaled=False, file=rules)
    rules.write_text('{"objective_s": 3}')
    assert rules_of(15.0, scaled=False, file=rules).objective_s == 3
    assert rules_of(5.0, scaled=True, file=None).grace_s == 40
    assert issubclass(BadOption, TidemarkError)


def test_evaluation_waits_for_tables_that_collect_makes_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Both are started at once, by people and by orchestrators: evaluate ended with tables-missing.
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            TableRoot.create(tmp_path / "tables", buckets=3)

    assert opened(tmp_path / "tables", wait=True, pause=pause).buckets == 3
    assert len(pauses) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"no tables in {tmp_path / 'tables'} yet: waiting until `collect` makes them"
    ]
    with pytest.raises(TablesMissing):
        opened(tmp_path / "nothing", wait=False, pause=pause)


@pytest.mark.parametrize("job", ["collect", "evaluate", "backfill"])
@pytest.mark.parametrize("period", ["0", "-15"])
def test_a_period_that_is_none_is_refused(job: str, period: str, tmp_path: Path) -> None:
    asked = [job, "--tables", str(tmp_path / "tables"), "--period", period]
    done = CliRunner().invoke(jobs, asked)
    assert done.exit_code == 2
    assert "--period" in done.output
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize(
    ("source", "option", "message"),
    [
        ("prometheus", "url=localhost:9090", "Option url is 'localhost:9090'; wanted: http://"),
        ("prometheus", "urk=http://localhost:9090", "Option url is ''; wanted: "),
        ("scrape", "targets=/nowhere.json", "Option targets is '/nowhere.json'"),
    ],
)
def test_a_wrong_source_option_is_reported_before_spark_starts(
    source: str, option: str, message: str, tmp_path: Path
) -> None:
    # Spark printed "UnboundLocalError: cannot access local variable 'reader'", below 150 lines.
    asked = ["collect", "--tables", str(tmp_path / "tables"), "--checkpoint", str(tmp_path / "c")]
    asked += ["--source", source, "--option", option, "--option", f"spool={tmp_path / 'spool'}"]
    done = CliRunner().invoke(jobs, asked)
    assert isinstance(done.exception, TidemarkError)
    assert message in str(done.exception)
    assert not (tmp_path / "tables").exists()
