"""Spark on Kubernetes: its settings agree with the resources of the driver's pod."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.project.infra.chart.render import (
    BASE,
    DRIVERS,
    ENABLED,
    FULLNAME,
    NAMESPACE,
    Resource,
    combine,
    environment,
    file_of,
    render,
    workloads,
)
from tests.project.infra.chart.test_pods import assert_restricted
from tests.project.infra.files import config_of, spark_on_kubernetes


def executor_template(resources: list[Resource], folder: Path) -> object:
    return yaml.safe_load(file_of(resources, "driver", "executor.yaml", folder).read_text("utf-8"))


@pytest.mark.parametrize("name", DRIVERS)
def test_drivers(name: str, tmp_path: Path) -> None:
    resources = render(combine(BASE, ENABLED[name], {name: {"executors": 3}, "executor": {"memory": "2g"}}))
    (one,) = [w for w in workloads(resources) if w.component == name]
    spec, container = one.pod["spec"], one.container
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    config = config_of(container["args"], environment(container), toml)
    conf = config.spark.conf
    assert config.spark.master == "k8s://https://kubernetes.default.svc"
    assert conf["spark.executor.instances"] == "3"
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.driver.host"] == f"{spec['hostname']}.{spec['subdomain']}.{NAMESPACE}.svc"
    assert conf["spark.kubernetes.namespace"] == NAMESPACE
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert conf["spark.kubernetes.driver.pod.name"] == environment(container)["POD_NAME"]
    assert [n for n in conf if n.startswith("spark.kubernetes.") and n not in spark_on_kubernetes()] == []
    ports = {p["name"]: str(p["containerPort"]) for p in container["ports"]}
    assert ports == {"driver": conf["spark.driver.port"], "blocks": conf["spark.driver.blockManager.port"]}
    (service,) = [r for r in resources if (r.kind, r.name) == ("Service", spec["subdomain"])]
    assert service.body["spec"]["clusterIP"] == "None"
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "spark"]
    template = executor_template(resources, tmp_path)
    assert isinstance(template, dict)
    assert_restricted(template["spec"])
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/executor.yaml"
    (executor,) = template["spec"]["containers"]
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == executor["name"]


def test_only_drivers_may_make_pods() -> None:
    values = combine(BASE, ENABLED["nightly"], ENABLED["verify"], {"verify": {"executors": 1}})
    resources = render(values)
    (binding,) = [r.body for r in resources if r.kind == "RoleBinding"]
    (role,) = [r for r in resources if r.kind == "Role"]
    assert binding["roleRef"]["name"] == role.name
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": f"{FULLNAME}-verify", "namespace": NAMESPACE}
    ]
    tokens = {w.component: w.pod["spec"].get("automountServiceAccountToken") for w in workloads(resources)}
    assert tokens == {"nightly": False, "verify": True, "metrics": False}


@pytest.mark.parametrize("name", DRIVERS)
def test_without_executors_there_are_no_rights(name: str) -> None:
    kinds = {r.kind for r in render(combine(BASE, ENABLED[name]))}
    assert not kinds & {"Role", "RoleBinding"}


def test_executors_pull_the_image_as_the_driver_does(tmp_path: Path) -> None:
    values = combine(
        BASE,
        ENABLED["nightly"],
        {"nightly": {"executors": 1}, "imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
    )
    resources = render(values)
    (nightly,) = [w for w in workloads(resources) if w.component == "nightly"]
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    conf = config_of(["backup"], environment(nightly.container), toml).spark.conf
    assert conf["spark.kubernetes.container.image.pullSecrets"] == "a,b"
    assert "spark.kubernetes.container.image.pullSecrets" in spark_on_kubernetes()
