"""Read the manifests of `infra/`, and the configuration that a container's arguments and variables make."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kbackup.cli import cli
from kbackup.cli.common.frame import State
from kbackup.config import Config, Files, load

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
KUBERNETES = INFRA / "kubernetes"
PATCHES = sorted(KUBERNETES.glob("spark/patch-*.yaml"))


def documents(path: Path) -> list[Any]:
    """The YAML documents of a file; an alias or a tag that is not YAML's own is an error."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


class Resource(NamedTuple):
    path: Path
    kind: str
    name: str
    body: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.path.relative_to(INFRA)}: {self.kind} {self.name}"

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


def _resources() -> Iterator[Resource]:
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        if path.name == "kustomization.yaml" or path in PATCHES:
            continue
        for body in documents(path):
            yield Resource(path, body["kind"], body.get("metadata", {}).get("name", path.stem), body)


RESOURCES = list(_resources())
WORKLOADS = [r for r in RESOURCES if r.kind in ("CronJob", "Job", "Deployment")]
OURS = [r for r in WORKLOADS if r.container["image"] == "kbackup"]
"""Workloads that run kbackup."""


def kustomization(folder: Path) -> Mapping[str, Any]:
    (body,) = documents(folder / "kustomization.yaml")
    return dict(body)


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container; those that Kubernetes fills in are `from-the-cluster`."""
    return {item["name"]: item.get("value", "from-the-cluster") for item in container.get("env", [])}


def env_file(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text("utf-8").splitlines())


def config_of(args: Sequence[str], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """As kbackup would start with them; it is not run. `click.UsageError`, `UsageError` where it would refuse."""
    name, *arguments = args
    command = cli.get_command(cli.make_context("kbackup", [name, "--help"], resilient_parsing=True), name)
    assert command is not None, f"no command {name}"
    state = State()
    with command.make_context(name, list(arguments), obj=state):
        return load(state.settings, Files(config=str(file) if file else None), environ).config


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bkbackup_\w+", expression))


@cache
def spark_on_kubernetes() -> str:
    """All classes of Spark's part for Kubernetes, in which every name that it knows stands as it is."""
    spec = find_spec("pyspark")
    assert spec is not None
    (jar,) = Path(str(spec.origin)).parent.glob("jars/spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        return "\n".join(
            n + classes.read(n).decode("latin-1") for n in classes.namelist() if n.endswith(".class")
        )
