"""Metrics: jobs leave files where the exporter shows them, and Prometheus Operator gets monitors and alerts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scripts.dev.programs import PROMETHEUS_OPERATOR, source
from tests.project.infra.chart.render import (
    BASE,
    CHART,
    ENABLED,
    EVERYTHING,
    FOLLOWERS,
    SCHEDULED,
    Resource,
    combine,
    render,
    workload,
    workloads,
)
from tests.project.infra.files import documents

CLAIM = {"name": "metrics", "persistentVolumeClaim": {"claimName": "shop-kbackup-metrics"}}


def volumes(one: Resource) -> list[dict[str, Any]]:
    return [volume for volume in one.pod["spec"]["volumes"] if volume["name"] == "metrics"]


def exporters(resources: list[Resource]) -> list[Resource]:
    return [w for w in workloads(resources) if w.component == "metrics"]


@pytest.mark.parametrize("name", SCHEDULED)
def test_jobs_and_the_exporter_share_a_volume(name: str) -> None:
    resources = render(combine(BASE, ENABLED[name]))
    (exporter,) = exporters(resources)
    assert volumes(workload(name)) == volumes(exporter) == [CLAIM]
    (mount,) = exporter.container["volumeMounts"]
    assert f"--collector.textfile.directory={mount['mountPath']}" in exporter.container["args"]
    (claim,) = [r.body for r in resources if r.kind == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "affinity" not in workload(name).pod["spec"]


@pytest.mark.parametrize("name", [*FOLLOWERS, "page", "restore"])
def test_workloads_without_metrics_files_have_no_volume(name: str) -> None:
    resources = render(combine(BASE, ENABLED[name]))
    assert volumes(workload(name)) == []
    assert exporters(resources) == []
    assert [r for r in resources if r.kind == "PersistentVolumeClaim"] == []


def test_jobs_run_on_the_node_of_the_exporter_if_one_node_may_mount_the_volume() -> None:
    values = combine(BASE, ENABLED["nightly"], {"metrics": {"volume": {"type": "ReadWriteOnce"}}})
    resources = render(values)
    (exporter,) = exporters(resources)
    (nightly,) = [w for w in workloads(resources) if w.component == "nightly"]
    affinity = nightly.pod["spec"]["affinity"]
    (term,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= exporter.pod["metadata"]["labels"].items()
    own: dict[str, Any] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    (nightly,) = [
        w for w in workloads(render(combine(values, {"nightly": {"affinity": own}}))) if w.kind == "CronJob"
    ]
    assert nightly.pod["spec"]["affinity"] == own


def test_without_any_storage_metrics_end_with_the_pod() -> None:
    resources = render(combine(BASE, ENABLED["nightly"], {"metrics": {"volume": {"type": "emptyDir"}}}))
    assert exporters(resources) == []
    (nightly,) = workloads(resources)
    assert volumes(nightly) == [{"name": "metrics", "emptyDir": {}}]


def test_prometheus_finds_the_services_by_annotations_or_by_the_operator() -> None:
    for operator in (False, True):
        values = combine(EVERYTHING, {"metrics": {"serviceMonitor": {"enabled": operator}}})
        services = [r.body for r in render(values) if r.kind == "Service"]
        shown = [s for s in services if s["spec"]["ports"][0]["name"] == "metrics"]
        assert len(shown) == 3
        for service in shown:
            annotations = service["metadata"].get("annotations", {})
            port = str(service["spec"]["ports"][0]["port"])
            expected = {"prometheus.io/scrape": "true", "prometheus.io/port": port}
            assert annotations == ({} if operator else expected)


def test_monitor_selects_the_services() -> None:
    resources = render(EVERYTHING)
    (monitor,) = [r.body["spec"] for r in resources if r.kind == "ServiceMonitor"]
    labels = monitor["selector"]["matchLabels"].items()
    (endpoint,) = monitor["endpoints"]
    shown = {
        r.component
        for r in resources
        if r.kind == "Service"
        and labels <= r.body["metadata"]["labels"].items()
        and endpoint["port"] in {port["name"] for port in r.body["spec"]["ports"]}
    }
    assert shown == {"metrics", "mirror-take", "mirror-apply"}


def test_alerts_and_dashboard_are_those_of_the_files() -> None:
    resources = render(EVERYTHING)
    (rules,) = documents(CHART / "files" / "kbackup.rules.yaml")
    (alerts,) = [r.body for r in resources if r.kind == "PrometheusRule"]
    assert alerts["spec"] == rules
    (dashboard,) = [r.body for r in resources if r.kind == "ConfigMap" and r.component == "dashboard"]
    assert json.loads(dashboard["data"]["kbackup.json"]) == json.loads(
        (CHART / "files/kbackup.json").read_text()
    )
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


@cache
def schema(plural: str) -> dict[str, Any]:
    """The schema of a kind of Prometheus Operator; it allows no fields that the operator does not know."""
    folder = Path(source(PROMETHEUS_OPERATOR)) / "example" / "prometheus-operator-crd"
    (definition,) = documents(folder / f"monitoring.coreos.com_{plural}.yaml")
    (version,) = definition["spec"]["versions"]
    return dict(strict(version["schema"]["openAPIV3Schema"]))


def strict(one: Any) -> Any:
    if isinstance(one, list):
        return [strict(item) for item in one]
    if not isinstance(one, Mapping):
        return one
    closed = {name: strict(value) for name, value in one.items()}
    if isinstance(one.get("properties"), Mapping) and one.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.mark.parametrize(
    ("kind", "plural"), [("ServiceMonitor", "servicemonitors"), ("PrometheusRule", "prometheusrules")]
)
def test_objects_of_prometheus_operator_fit_its_schemas(kind: str, plural: str) -> None:
    (body,) = [dict(r.body) for r in render(EVERYTHING) if r.kind == kind]
    without = {**body, "metadata": {}}
    validator = jsonschema.Draft202012Validator(
        schema(plural)
    )  # its patterns are Go's, which can't be checked
    validator.validate(without)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**without, "spec": {**body["spec"], "groops": []}})
