"""Kubernetes' API server and controllers take the chart, in a namespace of restricted pods."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from scripts.dev.cache import HELM, binary
from scripts.dev.kubernetes import ControlPlane, programs
from tests.clusters.kubernetes import components, granted, install, make_namespace, refused, wait_until
from tests.project.infra.chart import (
    BASE,
    DRIVERS,
    ENABLED,
    EVERYTHING,
    FULLNAME,
    MATRIX,
    NAMESPACE,
    RELEASE,
    SCHEDULED,
    combine,
    render,
)
from tests.project.infra.files import INFRA, ROOT


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    make_namespace(control_plane, NAMESPACE)
    return control_plane


@pytest.fixture
def namespace(cluster: ControlPlane) -> str:
    """A namespace of one test."""
    name = f"test-{secrets.token_hex(4)}"
    make_namespace(cluster, name)
    return name


@pytest.mark.parametrize("name", MATRIX)
def test_the_api_server_takes_all_objects_without_a_warning(name: str, cluster: ControlPlane) -> None:
    objects = yaml.safe_dump_all([resource.body for resource in render(MATRIX[name])])
    apply = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-"]
    done = cluster.try_kubectl(*apply, f"--namespace={NAMESPACE}", text=objects)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(render(MATRIX[name]))


def test_an_object_that_is_wrong_is_refused(cluster: ControlPlane) -> None:
    """So the dry run of the test above looks."""
    (claim,) = [r.body for r in render(EVERYTHING) if r.kind == "PersistentVolumeClaim"]
    wrong = yaml.safe_dump(combine(claim, {"spec": {"accessModes": ["ReadWriteSometimes"]}}))
    done = cluster.try_kubectl(
        "apply", "--server-side", "--dry-run=server", f"--namespace={NAMESPACE}", "-f-", text=wrong
    )
    assert 'Unsupported value: "ReadWriteSometimes"' in done.stderr


def test_pods_of_every_workload_are_made(cluster: ControlPlane, namespace: str) -> None:
    install(cluster, namespace, RELEASE, EVERYTHING)
    for name in SCHEDULED:
        job = [f"{name}-now", f"--from=cronjob/{FULLNAME}-{name}"]
        cluster.kubectl("create", "job", *job, f"--namespace={namespace}")
    enabled = ENABLED.keys() - {"follow"} | {"metrics"}

    def all_made() -> bool:
        assert refused(cluster, namespace) == []
        return components(cluster, namespace) == enabled

    wait_until(all_made, "pods of all workloads")


def test_a_follower_has_its_pod(cluster: ControlPlane, namespace: str) -> None:
    install(cluster, namespace, RELEASE, combine(BASE, ENABLED["follow"]))
    wait_until(lambda: components(cluster, namespace) == {"follow"}, "the pod of the follower")
    assert refused(cluster, namespace) == []


def test_a_cron_job_makes_its_job_when_it_is_time(cluster: ControlPlane, namespace: str) -> None:
    install(cluster, namespace, RELEASE, combine(BASE, ENABLED["nightly"], {"nightly": {"schedule": "* * * * *"}}))
    jobs = wait_until(lambda: cluster.get("jobs", f"--namespace={namespace}")["items"], "a job of the cron job")
    (owner,) = jobs[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("CronJob", f"{FULLNAME}-nightly")
    wait_until(lambda: components(cluster, namespace) >= {"nightly"}, "the pod of the job")


DRIVER = f"{FULLNAME}-nightly"


def test_a_driver_may_handle_pods_and_their_configuration_and_nothing_else(
    cluster: ControlPlane, namespace: str
) -> None:
    executors = {name: {"executors": 2} for name in DRIVERS}
    install(cluster, namespace, RELEASE, combine(EVERYTHING, executors))
    assert granted(cluster, namespace, DRIVER) == {
        "pods": {"create", "get", "list", "watch", "delete", "deletecollection"},
        "configmaps": {"create", "deletecollection"},
    }
    assert granted(cluster, namespace, f"{FULLNAME}-page") == {}
    user = f"--as=system:serviceaccount:{namespace}:{DRIVER}"
    for question in (
        ["get", "secrets"],
        ["get", "configmaps"],
        ["patch", "pods"],
        ["create", "pods", "--subresource=exec"],
        ["get", "pods", "--subresource=log"],
        ["create", "serviceaccounts", "--subresource=token"],
        ["create", "rolebindings"],
        ["delete", "jobs"],
    ):
        done = cluster.try_kubectl("auth", "can-i", *question, user, f"--namespace={namespace}")
        assert (done.stdout, done.stderr) == ("no\n", ""), question
    elsewhere = cluster.try_kubectl("auth", "can-i", "create", "pods", user, "--namespace=default")
    assert elsewhere.stdout == "no\n"


@pytest.mark.parametrize("name", ["everything", "everything-set"])
def test_a_driver_may_create_executors_by_their_template(name: str, cluster: ControlPlane, namespace: str) -> None:
    install(cluster, namespace, RELEASE, combine(MATRIX[name], {"defaults": {"priorityClassName": ""}}))
    template = cluster.get("configmap", f"{FULLNAME}-driver", f"--namespace={namespace}")["data"]["nightly.yaml"]
    pod = yaml.safe_load(template)
    pod["metadata"]["name"] = "executor-1"
    pod["spec"]["containers"][0]["image"] = "registry.example.com/kbackup"  # Spark fills it in
    user = f"--as=system:serviceaccount:{namespace}:{DRIVER}"
    done = cluster.try_kubectl("create", user, f"--namespace={namespace}", "--filename=-", text=yaml.safe_dump(pod))
    assert (done.stdout, done.stderr) == ("pod/executor-1 created\n", "")


SECRETS = ("backup", "expire", "drill", "restore", "take", "apply")
"""The files of variables that kubernetes.md makes secrets of."""


def test_commands_of_the_documents_are_taken(cluster: ControlPlane, tmp_path: Path) -> None:
    """Those of kubernetes.md, one after another. What follows logs needs a node."""
    page = (INFRA / "docs" / "kubernetes.md").read_text("utf-8")
    lines = re.findall(r"^ *((?:kubectl|helm) .*)", page, re.MULTILINE)
    assert len(lines) > 10
    for path in (INFRA / "helm" / "examples").glob("*.yaml"):
        shutil.copy(path, tmp_path)
    for name in SECRETS:
        (tmp_path / f"{name}.env").write_text("KBACKUP_S3_SECRET_ACCESS_KEY=secret\n")
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    env = {
        **os.environ,
        "PATH": f"{programs()}:{binary(HELM).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.admin),
        "HOME": str(tmp_path),
    }
    for line in lines:
        if " logs " not in line:
            done = subprocess.run(
                ["/bin/sh", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), f"{line}\n{done.stderr}"
