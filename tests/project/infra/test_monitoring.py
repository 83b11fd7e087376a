"""Alerts and dashboard ask for what kbackup counts: names, labels, commands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kbackup.cli import COMMANDS
from kbackup.metrics.registry import METRICS
from tests.project.infra.files import INFRA, documents, metrics_in

FILES = INFRA / "helm" / "kbackup" / "files"
RULES = FILES / "kbackup.rules.yaml"
TESTS = FILES / "kbackup.test.yaml"
METRICS_PAGE = INFRA / "docs" / "metrics.md"
DASHBOARD = json.loads((FILES / "kbackup.json").read_text("utf-8"))
SHARED = {"command", "archive"}


def rules() -> list[dict[str, Any]]:
    (body,) = documents(RULES)
    return [rule for group in body["groups"] for rule in group["rules"]]


def suggested() -> Iterator[dict[str, Any]]:
    """The rules that the documents leave to their readers."""
    for block in re.findall(r"```yaml\n(groups:\n.*?)```", METRICS_PAGE.read_text("utf-8"), re.DOTALL):
        for group in yaml.safe_load(block)["groups"]:
            yield from group["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in (*rules(), *suggested()):
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[f"{w}-{i}" for i, (w, _) in enumerate(EXPRESSIONS)])
def test_expressions_ask_for_metrics_and_labels_that_exist(where: str, expression: str) -> None:
    names = metrics_in(expression)
    assert names, where
    assert names <= set(METRICS)
    labels = SHARED | {label for name in names for label in METRICS[name].labels}
    for inside in re.findall(r"\b(?:by|on|ignoring) \(([^)]*)\)", expression):
        assert {label.strip() for label in inside.split(",")} <= labels
    for name, matchers in re.findall(r"(kbackup_\w+)\{([^}]*)\}", expression):
        given = dict(re.findall(r'(\w+)(?:=|!=|=~|!~)"([^"]*)"', matchers))
        assert given.keys() <= SHARED | set(METRICS[name].labels)
        assert set(given.get("command", "backup").split("|")) <= set(COMMANDS)
        assert given.get("archive", "$archive") == "$archive"
    for counted in re.findall(r"(?:increase|rate)\((kbackup_\w+)", expression):
        assert METRICS[counted].kind == "counter"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_say_what_is_wrong(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
        assert label in rule["expr"] or label in SHARED
    for named in re.findall(r"infra/docs/[\w-]+\.md", str(rule["annotations"])):
        assert (INFRA.parent / named).exists()


def test_the_alerts_that_must_be() -> None:
    by_name = {rule["alert"]: rule["expr"] for rule in rules()}
    assert "> 26 * 3600" in by_name["KbackupNoRestorePoint"]
    assert {"KbackupLoss", "KbackupDrillFailed", "KbackupFollowStale", "KbackupNotSeen"} <= set(by_name)


def test_every_alert_is_in_the_documents_and_has_a_test() -> None:
    page = METRICS_PAGE.read_text("utf-8")
    (body,) = documents(TESTS)
    tested = {case["alertname"] for test in body["tests"] for case in test["alert_rule_test"] if case["exp_alerts"]}
    names = {rule["alert"] for rule in rules()}
    assert set(re.findall(r"^\| `(Kbackup\w+)`", page, re.MULTILINE)) == names == tested
    assert body["rule_files"] == [RULES.name]


def test_series_of_the_rules_tests_are_real() -> None:
    (body,) = documents(TESTS)
    for series in (one["series"] for test in body["tests"] for one in test["input_series"]):
        name, labels = series.removesuffix("}").split("{")
        assert set(re.findall(r"(\w+)=", labels)) == SHARED | set(METRICS[name].labels)


def test_panels_of_the_dashboard_have_an_id_and_the_chosen_source() -> None:
    """Ids are unique, and panels ask the chosen source."""
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    asked = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used - {"__range", "__rate_interval"} == asked
    (query,) = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert metrics_in(query) <= set(METRICS)
