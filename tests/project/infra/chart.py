"""Render the Helm chart with values, and read the objects that it makes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scripts.dev.cache import HELM, binary
from tests.project.infra.files import INFRA, documents

CHART = INFRA / "helm" / "kbackup"
EXAMPLES = sorted((INFRA / "helm" / "examples").glob("*.yaml"))
NAMESPACE = "kafka-backups"
RELEASE = "shop"
FULLNAME = "shop-kbackup"

Values = Mapping[str, Any]

BASE: Values = {"image": {"repository": "registry.example.com/kbackup"}, "config": 'archive = "s3://backups/kafka"\n'}
"""The values that every workload requires."""

ADDRESS = {"KBACKUP_TARGET_BOOTSTRAP_SERVERS": "practice:9093"}

ENABLED: Mapping[str, Values] = {
    "nightly": {"nightly": {"enabled": True}},
    "follow": {"follow": {"enabled": True}},
    "expire": {"expire": {"enabled": True, "options": ["--keep-daily", "30"]}},
    "copy": {"copy": {"enabled": True, "destination": "s3://second/kafka"}},
    "verify": {"verify": {"enabled": True}},
    "drill": {"drill": {"enabled": True, "env": ADDRESS}},
    "page": {"page": {"enabled": True}},
    "serve": {"serve": {"enabled": True, "loginsSecret": "kafka-logins"}},
    "mirror-take": {"mirror": {"properties": "clusters = A, B\n", "take": {"enabled": True}}},
    "mirror-apply": {"mirror": {"properties": "clusters = A, B\n", "apply": {"enabled": True}}},
    "restore": {"restore": {"enabled": True, "id": "worst-day", "env": ADDRESS}},
}
"""The values that enable each workload."""

SCHEDULED = ("nightly", "expire", "copy", "verify", "drill")
FOLLOWERS = ("follow", "mirror-take", "mirror-apply")
DRIVERS = ("nightly", "verify", "drill", "restore")


class Resource(NamedTuple):
    kind: str
    name: str
    body: Mapping[str, Any]

    @property
    def pod(self) -> Mapping[str, Any]:
        """Template of the pods of a workload: metadata and spec."""
        spec = self.body["spec"]
        if self.kind == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        return dict(spec["template"])

    @property
    def container(self) -> Mapping[str, Any]:
        (container,) = self.pod["spec"]["containers"]
        return dict(container)

    @property
    def component(self) -> str:
        return str(self.body["metadata"]["labels"]["app.kubernetes.io/component"])


def combine(*values: Values) -> dict[str, Any]:
    """As Helm puts the values of several files together: tables are merged, all else is replaced."""
    result: dict[str, Any] = {}
    for one in values:
        for key, value in one.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = combine(result[key], value) if both else value
    return result


EVERYTHING = combine(
    BASE,
    *(values for name, values in ENABLED.items() if name != "follow"),
    {name: {"executors": 4} for name in DRIVERS},
    {"page": {"ingress": {"enabled": True, "host": "backups.example.com", "tlsSecret": "page-tls"}}},
    {"metrics": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")}},
)
"""All that can be enabled at the same time."""


def example(name: str) -> dict[str, Any]:
    (values,) = documents(INFRA / "helm" / "examples" / f"{name}.yaml")
    return dict(values)


DEFAULTS: Mapping[str, Any] = {
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
    "one-node": combine(EVERYTHING, {"metrics": {"volume": {"type": "ReadWriteOnce", "storageClassName": "fast"}}}),
    "no-volume": combine(EVERYTHING, {"metrics": {"volume": {"type": "emptyDir"}}}),
    "existing-claim": combine(EVERYTHING, {"metrics": {"volume": {"existingClaim": "metrics"}}}),
    "rules": combine(
        EVERYTHING,
        {"networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 9093}]}]}},
        {"metrics": {"serviceMonitor": {"relabelings": [{"targetLabel": "team", "replacement": "shop"}]}}},
    ),
    "digest": combine(EVERYTHING, {"image": {"digest": f"sha256:{'0' * 64}"}, "fullnameOverride": "backups"}),
}
"""What the chart is rendered with: by name, values that together use all of it."""


def helm(*arguments: str, values: Values | None = None) -> subprocess.CompletedProcess[str]:
    version = [] if arguments[0] == "install" else ["--kube-version", "1.31.0"]
    argv = [str(binary(HELM)), *arguments, *version, "--values", "-"]
    return subprocess.run(argv, input=json.dumps(values or {}), capture_output=True, text=True, check=False)


@cache
def _template(values: str) -> str:
    run = helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, values=json.loads(values))
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def render(values: Values) -> list[Resource]:
    """The objects of a release; a template that fails is an error."""
    bodies = [body for body in yaml.safe_load_all(_template(json.dumps(values))) if body]
    return [Resource(body["kind"], body["metadata"]["name"], body) for body in bodies]


def refusal(values: Values) -> str:
    """The message by which Helm refuses values."""
    run = helm("template", RELEASE, str(CHART), values=values)
    assert run.returncode != 0
    return run.stderr


def workloads(resources: list[Resource]) -> list[Resource]:
    return [r for r in resources if r.kind in ("CronJob", "Job", "Deployment")]


def workload(name: str, *values: Values) -> Resource:
    """The workload of this name, which these values alone enable."""
    resources = render(combine(BASE, ENABLED[name], *values))
    (one,) = [r for r in workloads(resources) if r.component == name]
    return one


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container; those that Kubernetes fills in are `from-the-cluster`."""
    return {item["name"]: item.get("value", "from-the-cluster") for item in container.get("env", [])}


def mounts(one: Resource) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in one.container["volumeMounts"]}


def file_of(resources: list[Resource], name: str, file: str, folder: Path) -> Path:
    """Write a file of a config map, and return its path."""
    (body,) = [r.body for r in resources if (r.kind, r.name) == ("ConfigMap", f"{FULLNAME}-{name}")]
    path = folder / file
    path.write_text(body["data"][file], "utf-8")
    return path
