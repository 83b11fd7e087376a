"""The chart's pods, run by a kubelet: a nightly backup, a restore that loses its pod, a follower and the page, and
executors of Spark of which one is killed. With a look for secrets in all that Kubernetes keeps of them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kbackup.store import open_store
from kbackup.store.base import Store
from scripts.dev.kafka import Broker
from scripts.dev.kubelet import HERE, Node, PodNetwork
from scripts.dev.kubernetes import ControlPlane
from scripts.dev.s3 import Minio
from tests.clusters.conftest import LARGE_PARTITIONS, LARGE_RECORDS, RECORDS, make_large_topic, make_small_topic
from tests.clusters.kubernetes import granted, install, make_namespace, wait_until
from tests.conftest import options_of
from tests.project.infra.chart import FULLNAME, RELEASE, Values, combine
from tests.support.secrets import Watch, make
from tests.support.truth import assert_restored, log_ends, read_topic
from tests.support.watching import proc

NIGHTLY = f"{FULLNAME}-nightly"


class ReachedPlane(ControlPlane):
    """An API server that nodes and pods reach."""

    host = HERE


class ReachedBroker(Broker):
    """A broker that pods reach."""

    host = HERE


class ReachedMinio(Minio):
    """An S3 server that pods reach."""

    host = HERE


@dataclass(frozen=True)
class Pods:
    """A namespace of a cluster whose node runs pods, an archive, and the servers that pods reach."""

    cluster: ControlPlane
    node: Node
    broker: Broker
    minio: Minio
    namespace: str
    archive: str

    @property
    def store(self) -> Store:
        return open_store(self.archive, {"s3": options_of(self.minio)})

    def values(self, *more: Values) -> Values:
        """Return values of the chart. Pods ask for less of the node than by default: it has two cores."""
        config = f"""
            archive = "{self.archive}"
            [s3]
            endpoint_url = "{self.minio.endpoint_url}"
            region = "{self.minio.region}"
            [source]
            "bootstrap.servers" = "{self.broker.bootstrap}"
            [target]
            "bootstrap.servers" = "{self.broker.bootstrap}"
            [backup]
            segment_bytes = "1MiB"
            """
        image = {"repository": "localhost/kbackup", "pullPolicy": "Never"}
        resources = {"requests": {"cpu": "100m", "memory": "512Mi"}}
        defaults = {"existingSecret": "kbackup-s3", "resources": resources}
        executor = {"cores": 1, "memory": "512m", "memoryOverhead": "1g", "cpuRequest": "100m"}
        metrics = {"volume": {"type": "emptyDir"}}
        base = {"image": image, "config": config, "defaults": defaults, "executor": executor, "metrics": metrics}
        return combine(base, *more)

    def install(self, release: str, *more: Values) -> None:
        install(self.cluster, self.namespace, release, self.values(*more))

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments, f"--namespace={self.namespace}")

    def get(self, *arguments: str) -> Any:
        return self.cluster.get(*arguments, f"--namespace={self.namespace}")

    def start(self, name: str, cron_job: str) -> None:
        """Start a job of a cron job, as kubernetes.md has it."""
        self.kubectl("create", "job", name, f"--from=cronjob/{cron_job}")

    def is_complete(self, job: str) -> bool:
        """Return whether a job is complete; that it failed is an error."""
        conditions = self.get("job", job)["status"].get("conditions", [])
        found = {one["type"]: one.get("message", "") for one in conditions if one["status"] == "True"}
        assert "Failed" not in found, f"{found}\n{self.kubectl('logs', f'job/{job}')}"
        return "Complete" in found

    def complete(self, job: str) -> None:
        """Wait until a job is complete."""
        wait_until(lambda: self.is_complete(job), f"the end of job {job}")

    def report(self, job: str) -> Any:
        """Return the report that a job prints. The log has its notes as well, before it and behind it."""
        lines = self.kubectl("logs", f"job/{job}").splitlines()
        report, _ = json.JSONDecoder().raw_decode("\n".join(lines[lines.index("{") :]))
        return report

    def pods_of(self, component: str) -> list[Any]:
        selector = f"--selector=app.kubernetes.io/component={component}"
        found: list[Any] = self.get("pods", selector)["items"]
        return found

    def running(self, component: str) -> list[str]:
        """Return the names of pods that run."""
        pods = self.pods_of(component)
        return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]

    def restored(self, topic: str, to: str) -> None:
        """Check that a topic was restored under another name."""
        assert_restored(read_topic(self.broker.bootstrap, topic), read_topic(self.broker.bootstrap, to))

    def places_of_the_secret(self) -> list[str]:
        """Return where the secret key of the store is, beside the secret that gives it: in logs, objects and events of
        the namespace, and the command lines of processes."""
        watch = Watch()
        watch.know("the secret key", self.minio.secret_key)
        watch.look_into(self.node.logs)
        for log in self.node.folder.glob("*.log"):
            watch.look_at(str(log), log.read_bytes())
        for kind in ("pods", "configmaps", "jobs", "events"):
            watch.look_at(kind, self.kubectl("get", kind, "--output=yaml"))
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                watch.look_at(f"the command line of {process.name}", proc(process.name, "cmdline"))
        return watch.hits


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[ControlPlane, Node]]:
    with PodNetwork() as network, ReachedPlane() as plane:
        network.lead_to(plane.port)
        with Node(plane, network) as node:
            yield plane, node


@pytest.fixture(scope="module")
def reached_broker(cluster: tuple[ControlPlane, Node]) -> Iterator[Broker]:
    with ReachedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def reached_minio(cluster: tuple[ControlPlane, Node]) -> Iterator[Minio]:
    with ReachedMinio() as running:
        yield running


@pytest.fixture
def pods(cluster: tuple[ControlPlane, Node], reached_broker: Broker, reached_minio: Minio) -> Pods:
    plane, node = cluster
    name = f"test-{secrets.token_hex(4)}"
    make_namespace(plane, name)
    reached_minio.create_bucket(name)
    made = Pods(plane, node, reached_broker, reached_minio, name, f"s3://{name}/kafka")
    make_secret(made, "kbackup-s3", secrets_of(reached_minio))
    return made


def secrets_of(server: Minio) -> dict[str, str]:
    """Return the variables with the keys of an S3 server."""
    return {f"KBACKUP_S3_{name.upper()}": server.options[name] for name in ("access_key_id", "secret_access_key")}


def make_secret(pods: Pods, name: str, variables: Mapping[str, str]) -> None:
    literals = [f"--from-literal={variable}={value}" for variable, value in variables.items()]
    pods.kubectl("create", "secret", "generic", name, *literals)


@pytest.fixture(scope="module")
def small(reached_broker: Broker) -> str:
    return make_small_topic(reached_broker)


@pytest.fixture(scope="module")
def large(reached_broker: Broker) -> str:
    return make_large_topic(reached_broker)


def nightly(*options: str, executors: int = 0) -> Values:
    return {"nightly": {"enabled": True, "options": list(options), "executors": executors}}


def restore(identity: str, *options: str, executors: int = 0) -> Values:
    return {"restore": {"enabled": True, "id": identity, "options": list(options), "executors": executors}}


def names(items: list[Any]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def job_of_restore(pods: Pods) -> str:
    """Return the name of the job of the only restore of the namespace."""
    (job,) = names(pods.get("jobs", "--selector=app.kubernetes.io/component=restore")["items"])
    return job


def has_records(broker: Broker, topic: str) -> bool:
    try:
        return any(log_ends(broker.bootstrap, topic).values())
    except (KafkaException, KeyError):  # the topic is being made
        return False


def ready_pod(pods: Pods, component: str) -> str:
    """Wait until the pod of a component is ready, and return its address."""

    def address() -> str | None:
        for pod in pods.pods_of(component):
            states = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
            if states.get("Ready") == "True":
                return str(pod["status"]["podIP"])
        return None

    return str(wait_until(address, f"a pod of {component} that is ready"))


def executor_process(pod: str) -> int:
    """Return the number of the process of an executor."""
    for process in Path("/proc").iterdir():
        words = proc(process.name, "cmdline").split(b"\0") if process.name.isdecimal() else []
        if words[:1] == [b"java"] and pod.encode() in words:
            return int(process.name)
    raise AssertionError(f"pod {pod} has no process")


def test_a_nightly_backup_and_a_restore(pods: Pods, small: str) -> None:
    restored = f"back-{secrets.token_hex(4)}"

    pods.install(RELEASE, nightly("--topic", small))
    pods.start("first", NIGHTLY)
    pods.complete("first")
    assert pods.report("first")["new_records"] == {small: RECORDS}

    pods.install("worst-day", restore("worst-day", "--map", f"{small}={restored}"))
    job = job_of_restore(pods)
    pods.complete(job)
    assert pods.report(job)["records"] == RECORDS
    pods.restored(small, restored)
    assert pods.places_of_the_secret() == []


def test_a_restore_whose_pod_is_lost_goes_on(pods: Pods, large: str) -> None:
    restored = f"back-{secrets.token_hex(4)}"
    pods.install(RELEASE, nightly("--topic", large))
    pods.start("first", NIGHTLY)
    pods.complete("first")

    pods.install("lost", restore("lost", "--map", f"{large}={restored}", "--limit-rate", "1MiB"))
    job = job_of_restore(pods)
    wait_until(lambda: pods.is_complete(job) or has_records(pods.broker, restored), "the first records of the restore")
    (pod,) = pods.running("restore")
    pods.kubectl("delete", "pod", pod, "--wait=false")
    pods.complete(job)

    (other,) = names(pods.pods_of("restore"))
    assert other != pod
    pods.restored(large, restored)


def test_a_follower_and_the_page_become_ready(pods: Pods, small: str) -> None:
    token = make("the token of the page in a pod")
    make_secret(pods, "kbackup-page", {**secrets_of(pods.minio), "KBACKUP_UI_TOKEN": token})
    follow = {"enabled": True, "options": ["--topic", small]}
    page = {"enabled": True, "existingSecret": "kbackup-page"}
    pods.install(RELEASE, {"follow": follow, "page": page})

    follower = ready_pod(pods, "follow")
    with urllib.request.urlopen(f"http://{follower}:9464/metrics", timeout=30) as answer:
        assert b"\nkbackup_" in answer.read()
    asked = urllib.request.Request(f"http://{ready_pod(pods, 'page')}:8484/topics")
    asked.add_header("Authorization", f"Bearer {token}")

    def shows_the_topic() -> bool:
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return small.encode() in answer.read()
        except urllib.error.HTTPError:  # the archive has no restore point yet
            return False

    wait_until(shows_the_topic, "a page with the topic of the first restore point")


def test_an_executor_is_killed_in_the_middle(pods: Pods, large: str) -> None:
    restored = f"back-{secrets.token_hex(4)}"
    pods.install(RELEASE, nightly("--topic", large, "--limit-rate", "1MiB", executors=2))
    pods.start("first", NIGHTLY)

    def are_at_work() -> bool:
        assert not pods.is_complete("first"), "the limit of rate keeps it at work"
        has_segments = any("segment_" in entry.key for entry in pods.store.list())
        return has_segments and len(pods.running("executor")) == 2

    wait_until(are_at_work, "two executors and a segment")
    first, second = pods.running("executor")
    assert pods.places_of_the_secret() == [], "while tasks have it"
    os.kill(executor_process(first), signal.SIGKILL)
    wait_until(lambda: set(pods.running("executor")) - {first, second}, "an executor in its place")
    pods.complete("first")
    assert pods.report("first")["new_records"] == {large: LARGE_PARTITIONS * LARGE_RECORDS}

    pods.install("killed", restore("killed", "--map", f"{large}={restored}", executors=2))
    pods.complete(job_of_restore(pods))
    pods.restored(large, restored)
    wait_until(lambda: not pods.pods_of("executor"), "the end of all executors, which drivers delete")
    assert_driver_needs_its_rights(pods)


def assert_driver_needs_its_rights(pods: Pods) -> None:
    """A driver whose executor was killed has asked for all that it may, and for nothing else."""
    asked: dict[str, set[str]] = {}
    for request in pods.cluster.requests_of(pods.namespace, NIGHTLY):
        assert request.status < 400, request
        asked.setdefault(request.resource, set()).add(request.verb)
    assert asked == granted(pods.cluster, pods.namespace, NIGHTLY)
