"""The chart renders, with every kind of values, what Kubernetes accepts, and nothing that was not asked for."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate import utils

from tests.project.infra.chart.render import (
    BASE,
    CHART,
    ENABLED,
    EVERYTHING,
    EXAMPLES,
    NAMESPACE,
    Values,
    combine,
    example,
    helm,
    render,
    workloads,
)
from tests.project.infra.files import INFRA, ROOT, documents

VERSIONS = ("1.31", kubernetes_validate.latest_version())
"""Of Kubernetes; the first one has all that the chart asks for (`podFailurePolicy` above all)."""

DEFAULTS = {
    "existingSecret": "kbackup-shared",
    "env": {"KBACKUP_S3_REGION": "eu-central-1"},
    "extraEnv": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
    "options": ["--verbose"],
    "cores": 8,
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/kbackup"}},
    "securityContext": {"readOnlyRootFilesystem": True},
    "podLabels": {"team": "shop"},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "backup", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "low",
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    "timeZone": "Europe/Berlin",
    "suspend": True,
    "concurrencyPolicy": "Replace",
    "activeDeadlineSeconds": 10_000_000,
}

MATRIX: Mapping[str, Values] = {
    **{name: combine(BASE, values) for name, values in ENABLED.items()},
    **{f"example-{path.stem}": example(path.stem) for path in EXAMPLES},
    "everything": EVERYTHING,
    "everything-set": combine(EVERYTHING, {"defaults": DEFAULTS, "imagePullSecrets": [{"name": "registry"}]}),
    "one-node": combine(
        EVERYTHING, {"metrics": {"volume": {"type": "ReadWriteOnce", "storageClassName": "fast"}}}
    ),
    "no-volume": combine(EVERYTHING, {"metrics": {"volume": {"type": "emptyDir"}}}),
    "existing-claim": combine(EVERYTHING, {"metrics": {"volume": {"existingClaim": "metrics"}}}),
    "digest": combine(EVERYTHING, {"image": {"digest": f"sha256:{'0' * 64}"}, "fullnameOverride": "backups"}),
}


@pytest.fixture(scope="module", autouse=True)
def _read_each_schema_once() -> Iterator[None]:
    """Keep the schemas of a version in memory: reading them takes ten times as long as the validation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


def validate(body: Mapping[str, Any], version: str) -> None:
    """Strictly: a field that Kubernetes doesn't know is an error."""
    kubernetes_validate.validate(body, version, strict=True)


@pytest.mark.parametrize("name", MATRIX)
def test_objects_fit_the_schemas_of_kubernetes(name: str) -> None:
    resources = render(MATRIX[name])
    assert workloads(resources)
    for resource in resources:
        if not resource.body["apiVersion"].startswith("monitoring.coreos.com/"):
            for version in VERSIONS:
                validate(resource.body, version)
    assert len({(r.kind, r.name) for r in resources}) == len(resources)


def test_schemas_refuse_what_is_misspelt() -> None:
    (job,) = [r for r in render(MATRIX["nightly"]) if r.kind == "CronJob"]
    with pytest.raises(kubernetes_validate.ValidationError):
        validate({**job.body, "spek": {}}, VERSIONS[0])


def test_nothing_is_made_until_a_workload_is_enabled() -> None:
    assert render({}) == []


@pytest.mark.parametrize("name", ["everything", "everything-set", "follow"])
def test_helm_finds_nothing_wrong(name: str) -> None:
    run = helm("lint", str(CHART), "--strict", values=MATRIX[name])
    assert run.returncode == 0, run.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in run.stdout


def test_helm_finds_nothing_wrong_with_the_defaults() -> None:
    assert helm("lint", str(CHART), "--strict").returncode == 0


def test_every_workload_has_values_of_its_own() -> None:
    (values,) = documents(CHART / "values.yaml")
    switches = {name for name, own in values.items() if isinstance(own, dict) and "enabled" in own}
    switches.remove("networkPolicy")
    assert switches | {f"mirror-{half}" for half in ("take", "apply")} == set(ENABLED)


def test_chart_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    (chart,) = documents(CHART / "Chart.yaml")
    page = (INFRA / "docs" / "kubernetes.md").read_text("utf-8")
    assert chart["version"] == chart["appVersion"] == version
    assert f"--tag {BASE['image']['repository']}:{version} ." in page
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    shown = " and ".join(".".join(v.split(".")[:2]) for v in VERSIONS)
    assert f"schemas of\nKubernetes {shown}," in page


def test_namespace_is_that_of_the_release() -> None:
    text = json.dumps([r.body for r in render(EVERYTHING)])
    assert f'"namespace": "{NAMESPACE}"' in text
    assert "kbackup.svc" not in text
