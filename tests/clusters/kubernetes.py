"""Releases of the chart in a cluster of Kubernetes, installed by Helm."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts.dev.cache import HELM, binary
from scripts.dev.kubernetes import ControlPlane
from scripts.dev.process import HANG
from tests.project.infra.chart import CHART, Values


def make_namespace(cluster: ControlPlane, name: str) -> None:
    """Make a namespace that takes restricted pods alone, and warns of all others."""
    cluster.kubectl("create", "namespace", name)
    levels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    cluster.kubectl("label", "namespace", name, *levels)


def install(cluster: ControlPlane, namespace: str, release: str, values: Values) -> None:
    """Install or upgrade a release; what Helm or the API server warns of is an error."""
    argv = [str(binary(HELM)), "upgrade", "--install", release, str(CHART), "--values", "-"]
    argv += ["--namespace", namespace, "--kubeconfig", str(cluster.admin)]
    given = json.dumps(values)
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=HANG)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def wait_until(true: Callable[[], Any], what: str) -> Any:
    """Return what `true` returns as soon as that is true."""
    end = time.monotonic() + HANG
    while not (found := true()):
        assert time.monotonic() < end, f"{what}: not within {HANG:.0f} s"
        time.sleep(0.2)
    return found


def components(cluster: ControlPlane, namespace: str) -> set[str]:
    """Return the components of the chart that have pods."""
    pods = cluster.get("pods", f"--namespace={namespace}")["items"]
    return {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in pods}


def granted(cluster: ControlPlane, namespace: str, account: str) -> dict[str, set[str]]:
    """Return the verbs that a service account may use, by resource; without those that everybody has."""
    user = f"--as=system:serviceaccount:{namespace}:{account}"
    lines = cluster.kubectl("auth", "can-i", "--list", user, f"--namespace={namespace}").splitlines()
    rights = {}
    for line in lines[1:]:
        resource = line.partition(" ")[0]
        if resource and not resource.startswith("[") and "self" not in resource:
            rights[resource] = set(line[line.rindex("[") + 1 : -1].split())
    return rights


def refused(cluster: ControlPlane, namespace: str) -> list[str]:
    """Return what controllers could not make, such as a pod that the namespace does not take."""
    events = cluster.get("events", f"--namespace={namespace}")["items"]
    return [event["message"] for event in events if event["reason"] == "FailedCreate"]


def write_values(folder: Path, name: str, values: Mapping[str, Any]) -> None:
    """Write a file of values, which is YAML as all JSON is."""
    (folder / name).write_text(json.dumps(values))
