"""The rules: their metrics exist, their texts can be filled in, promtool accepts them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.prometheus.rules import (
    ALERTS,
    PAGE,
    RECORDS,
    ROOT,
    TARGET_LABELS,
    Alert,
    Record,
    differing,
)
from shared.metrics.catalogue import BY_NAME
from shared.metrics.family import Kind
from tests.support.alert_cases import CASES
from tests.support.alert_cases.healthy import HEALTHY, Case
from tests.support.fast_rules import rule_file
from tests.support.for_each import for_each
from tests.support.prometheus import check
from tests.support.promql_tokens import milliseconds, used

RULES: list[Alert | Record] = [*ALERTS, *RECORDS]
SET = ("cluster", "broker")
SEVERITIES = {"page", "ticket", "info"}
SAMPLES_MAX = 400_000
"""Samples of one scrape; more than a broker with default limits exports."""
RUNBOOK = "docs/runbook.md"
SCRAPED = {"cluster", "broker", "replica", "service", "job", "instance"}
HISTOGRAM = re.compile(r"_(bucket|sum|count)$")
ENTRY = re.compile(r"^### `(Tidemark\w+)`\n(.*?)(?=^##? |^### |\Z)", re.MULTILINE | re.DOTALL)
ENTRIES = dict(ENTRY.findall((ROOT / RUNBOOK).read_text()))


def evidence(name: str) -> list[str]:
    """The queries of an alert's entry in the runbook."""
    return re.findall(r"```promql\n(.*?)\n```", ENTRIES[name], re.DOTALL)


def labels_of(metric: str) -> set[str]:
    """Every label that a metric's samples have. Raises KeyError if there is no such metric."""
    if metric in ("up", "scrape_samples_scraped", "ALERTS"):
        return {*SCRAPED, *(("alertname", "alertstate") if metric == "ALERTS" else ())}
    for record in RECORDS:
        if record.name == metric:
            return set(record.labels)
    family = BY_NAME.get(metric)
    if family is not None:
        assert family.kind is not Kind.HISTOGRAM, f"{metric} is a histogram: ask for its buckets"
        return {*SCRAPED, *family.labels}
    family = BY_NAME[HISTOGRAM.sub("", metric)]
    assert family.kind is Kind.HISTOGRAM, metric
    return {*SCRAPED, *family.labels, *(("le",) if metric.endswith("_bucket") else ())}


def unknown_names(expr: str) -> Iterator[str]:
    """Unknown metrics, and labels that their metrics do not have."""
    found = used(expr)
    known: set[str] = set()
    for metric, compared in found.metrics.items():
        try:
            labels = labels_of(metric)
        except KeyError:
            yield metric
            continue
        known |= labels
        yield from (f"{metric}{{{label}}}" for label in compared - labels)
    yield from found.groupings - known


def test_generated_files_are_as_the_data_say() -> None:
    assert differing() == [], "run `python -m deploy.prometheus`"


def test_promtool_takes_the_rules_at_every_speed(tmp_path: Path) -> None:
    for factor in (1, 10, 60):
        path = tmp_path / f"{factor}.yml"
        path.write_text(rule_file(factor))
        assert f"{len(RULES)} rules found" in check("promtool", "check", "rules", str(path))


def test_the_operators_object_has_the_same_rules() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/kubernetes/prometheus-rule.yaml").read_text())
    files = [
        group
        for path in sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    assert rules["kind"] == "PrometheusRule"
    assert sorted(rules["spec"]["groups"], key=str) == sorted(files, key=str)


def test_promtool_and_amtool_take_the_configurations() -> None:
    check("promtool", "check", "config", str(ROOT / "deploy/prometheus/prometheus.yml"))
    check("amtool", "check-config", str(ROOT / "deploy/prometheus/alertmanager.yml"))


def test_every_target_of_the_example_has_the_labels_that_rules_need() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert [job["job_name"] for job in config["scrape_configs"]] == [
        "tidemark-broker",
        "tidemark-reput",
        "tidemark-ha",
        "tidemark-names",
        "tidemark-analytics",
    ]
    # Analytics itself says of which cluster and set of brokers a pair is.
    assert [job.get("honor_labels", False) for job in config["scrape_configs"]] == [
        *(False, False, False, False, True)
    ]
    for job in config["scrape_configs"]:
        assert job["sample_limit"] == SAMPLES_MAX
        (file,) = job["file_sd_configs"][0]["files"]
        for entry in yaml.safe_load((ROOT / "deploy/prometheus" / file).read_text()):
            assert set(entry["labels"]) == {"cluster", "broker", "replica"}


def test_pods_are_asked_as_machines_are() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    monitor = yaml.safe_load(
        (ROOT / "deploy/k8s/components/monitoring/podmonitor.yaml").read_text()
    )["spec"]
    assert monitor["sampleLimit"] == SAMPLES_MAX
    beside = ("tidemark-analytics",)
    of_nodes = [job for job in config["scrape_configs"] if job["job_name"] not in beside]
    assert len(monitor["podMetricsEndpoints"]) == len(of_nodes)
    for endpoint in monitor["podMetricsEndpoints"]:
        assert endpoint["interval"] == config["global"]["scrape_interval"]
        assert endpoint["scrapeTimeout"] == config["global"]["scrape_timeout"]
        assert {each["targetLabel"] for each in endpoint["relabelings"]} == {*TARGET_LABELS, "job"}


@for_each("rule", RULES)
def test_a_rule_speaks_of_what_there_is(rule: Alert | Record) -> None:
    assert list(unknown_names(rule.expr)) == []


@pytest.mark.parametrize("wrong", ["tidemark_ready_bytes", "sum by (node) (up)", 'up{pool="put"}'])
def test_a_name_that_there_is_not_would_be_found(wrong: str) -> None:
    assert list(unknown_names(wrong))


@for_each("alert", ALERTS)
def test_an_alert_has_all_values_that_it_can_have(alert: Alert) -> None:
    summary, description = alert.annotations["summary"], alert.annotations["description"]
    for text in (summary, description):
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in alert.labels
    assert "$value" in summary or alert.name in {
        # 0, or as often as events came: the number is no news.
        *("TidemarkTargetDown", "TidemarkBrokerGone", "TidemarkNotReady", "TidemarkResync"),
        *("TidemarkReplicaHalted", "TidemarkStoreFillsUp", "TidemarkFailoverPaused"),
        *("TidemarkDispatchErrors", "TidemarkClockStepped", "TidemarkAnalyticsDown"),
        *("TidemarkNamesDown", "TidemarkNamesGone"),
    }
    assert not summary.endswith(".")
    assert description.endswith(".")
    assert alert.labels[: len(SET)] == SET or alert.name == "TidemarkVersionsDiffer"
    assert milliseconds(alert.waits) <= 3_600_000


def test_every_alert_links_its_own_entry_of_the_runbook() -> None:
    page = "{{ with $externalLabels.runbook }}{{ . }}{{ else }}docs/runbook.md{{ end }}"
    for alert in ALERTS:
        assert alert.annotations["runbook_url"] == f"{page}#{alert.name.lower()}"


def test_a_scrape_is_reported_as_large_at_four_fifths_of_its_limit() -> None:
    (large,) = (alert for alert in ALERTS if alert.name == "TidemarkScrapeLarge")
    assert large.expr.endswith(f"> {SAMPLES_MAX * 4 // 5}")


def test_the_documented_recordings_are_those_of_the_rules() -> None:
    rows = re.findall(r"^\| `(tidemark:\S+)` \| (.+?) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: tuple(labels.split(", ")) for name, labels in rows} == {
        record.name: record.labels for record in RECORDS
    }


def test_names_are_given_once() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {alert.severity for alert in ALERTS} == SEVERITIES


def test_every_alert_has_an_entry_in_the_runbook_and_every_entry_an_alert() -> None:
    assert set(ENTRIES) == {alert.name for alert in ALERTS}


def test_the_evidence_of_every_entry_can_be_asked(tmp_path: Path) -> None:
    records = []
    for name in ENTRIES:
        queries = evidence(name)
        assert queries, f"{name} names no query"
        after = ENTRIES[name].rpartition("```")[2]
        assert len(after.split()) >= 5, f"{name} does not say what to do"
        for number, query in enumerate(queries):
            assert list(unknown_names(query)) == [], f"{name}: {query}"
            records.append({"record": f"evidence:{name}:{number}", "expr": query})
    path = tmp_path / "evidence.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "evidence", "rules": records}]}))
    check("promtool", "check", "rules", str(path))


def test_every_alert_that_is_silenced_or_silences_exists() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yml").read_text())
    names = {alert.name: alert for alert in ALERTS}
    for rule in config["inhibit_rules"]:
        sources = _matched(rule["source_matchers"], names)
        targets = _matched(rule["target_matchers"], names)
        assert sources, rule
        assert targets, rule
        # Of "every alert" those without one of the labels are not silenced, and are not meant.
        every = any('"Tidemark.+"' in matcher for matcher in rule["target_matchers"])
        for alert in sources if every else sources + targets:
            assert set(rule["equal"]) <= set(alert.labels), (rule, alert.name)
    assert {route["receiver"] for route in config["route"]["routes"]} == SEVERITIES
    for receiver in config["receivers"]:
        assert set(receiver) == {"name"}, "as delivered nothing is sent anywhere"


def test_no_event_of_a_page_is_silenced() -> None:
    """Such an event may end before the alert that would silence it, and would never be reported."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yml").read_text())
    names = {alert.name: alert for alert in ALERTS}
    events = {a.name for a in ALERTS if a.waits == "0s" and a.severity == "page"}
    assert events >= {"TidemarkGroupMessagesLost", "TidemarkDamage"}
    for rule in config["inhibit_rules"]:
        for alert in _matched(rule["target_matchers"], names):
            assert alert.name not in events or not set(rule["equal"]) <= set(alert.labels), rule


def test_a_silenced_alert_ends_before_the_silencing_one() -> None:
    """Dispatch stalled because reput was stopped. Reput came back, its alert ended, and that of
    dispatch, which stayed for longer, was sent when all was well."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yml").read_text())
    names = {alert.name: alert for alert in ALERTS}
    judged = 0
    for rule in config["inhibit_rules"]:
        for source in _matched(rule["source_matchers"], names):
            for target in _matched(rule["target_matchers"], names):
                if target.waits == "0s":
                    continue  # an event is news whenever
                if source.name == "TidemarkTargetDown" and "Dispatch" not in target.name:
                    continue  # a full disk does not follow from it
                if source.name == "TidemarkGroupStopped":
                    continue  # those two need a member
                if source.name == "TidemarkDispatchStuck" and "Group" in target.name:
                    continue  # a consumer's own trouble begins when there is something to read
                if milliseconds(target.keeps) and set(rule["equal"]) <= set(target.labels):
                    judged += 1
                    assert milliseconds(target.keeps) < milliseconds(source.keeps), (
                        source.name,
                        target.name,
                    )
    assert judged >= 5


def _matched(matchers: list[str], names: dict[str, Alert]) -> list[Alert]:
    """Alerts that all matchers fit; each alternative of a pattern must fit one."""
    found = set(names)
    for matcher in matchers:
        label, sign, value = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
        assert label == "alertname"
        if sign == "!=":
            assert value in names
            found.discard(value)
            continue
        for each in value.split("|"):
            assert any(re.fullmatch(each, name) for name in names), each
        found &= {name for name in names if re.fullmatch(value, name)}
    return [names[name] for name in sorted(found)]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_could_and_does_not() -> None:
    cases = [case for area in CASES.values() for case in area]
    for alert in ALERTS:
        fired = [case for case in cases if any(alert.name in names for _, names in case.fires)]
        assert fired, f"{alert.name} never fires"
        assert any(_could_fire(alert, case) for case in cases), f"{alert.name} is never silent"


def _could_fire(alert: Alert, case: Case) -> bool:
    """All series that it reads exist, and at some time it does not fire."""
    series = {
        key.partition("{")[0]
        for key, values in {**HEALTHY, **case.changes}.items()
        if values is not None
    } | {record.name for record in RECORDS}
    looked_at = set(used(alert.expr).metrics)
    return looked_at <= series and any(alert.name not in names for _, names in case.fires)


def test_a_case_changes_series_that_exist_and_names_alerts_that_do() -> None:
    names = {alert.name for alert in ALERTS}
    for area in CASES.values():
        for case in area:
            assert {each for _, fires in case.fires for each in fires} <= names, case.name
            for key in {**HEALTHY, **case.changes}:
                metric, _, rest = key.partition("{")
                assert set(re.findall(r'(\w+)="', rest)) == labels_of(metric), key


def test_target_labels_are_those_of_the_scrape_configuration() -> None:
    assert set(TARGET_LABELS) < SCRAPED


@pytest.mark.parametrize(
    ("labels", "page"),
    [
        ({}, RUNBOOK),
        ({"runbook": "https://wiki.example/tm/runbook"}, "https://wiki.example/tm/runbook"),
    ],
)
def test_the_link_to_the_runbook_is_an_address_where_prometheus_knows_one(
    labels: dict[str, str], page: str, tmp_path: Path
) -> None:
    # It was a path in the project everywhere, which a person on call cannot open.
    alert = ALERTS[0]
    annotations = {"runbook_url": alert.annotations["runbook_url"]}
    rule = {"alert": alert.name, "expr": "vector(1)", "annotations": annotations}
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "links", "rules": [rule]}]})
    )
    linked = {"runbook_url": f"{page}#{alert.name.lower()}"}
    expected = {
        "eval_time": "1m",
        "alertname": alert.name,
        "exp_alerts": [{"exp_annotations": linked}],
    }
    cases = {
        "rule_files": ["rules.yml"],
        "tests": [{"interval": "1m", "external_labels": labels, "alert_rule_test": [expected]}],
    }
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    check("promtool", "test", "rules", str(tmp_path / "cases.yml"))
