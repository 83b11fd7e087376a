"""Pods: every name that one object has from another is there, nothing runs as root."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.project.infra.chart.render import (
    BASE,
    ENABLED,
    EVERYTHING,
    FOLLOWERS,
    SCHEDULED,
    combine,
    environment,
    mounts,
    render,
    workload,
    workloads,
)
from tests.project.infra.files import ROOT, config_of

ALL_VALUES = [EVERYTHING, combine(BASE, ENABLED["follow"])]


@pytest.mark.parametrize("values", ALL_VALUES, ids=["everything", "follow"])
def test_nothing_runs_as_root(values: dict[str, Any]) -> None:
    for one in workloads(render(values)):
        driver = one.pod["metadata"]["labels"].get("kbackup/spark") == "driver"
        assert_restricted(one.pod["spec"], token=driver)


def assert_restricted(spec: dict[str, Any], token: bool = False) -> None:
    """Check the requirements of the pod security standard `restricted`, with the user of the image."""
    pod = spec["securityContext"]
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "infra/image/Dockerfile").read_text(), re.MULTILINE)
    assert [(str(pod["runAsUser"]), str(pod["runAsGroup"]))] == user
    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is token
    for container in spec["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("values", ALL_VALUES, ids=["everything", "follow"])
def test_names_agree(values: dict[str, Any]) -> None:
    """Config maps, claims and service accounts are made somewhere; what is mounted is a volume."""
    resources = render(values)
    made = {(r.kind, r.name) for r in resources}
    for one in workloads(resources):
        spec = one.pod["spec"]
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
            elif "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in made
        if account := spec.get("serviceAccountName"):
            assert ("ServiceAccount", account) in made
        assert set(mounts(one)) == {v["name"] for v in spec["volumes"]}


@pytest.mark.parametrize("values", ALL_VALUES, ids=["everything", "follow"])
def test_deployments_choose_their_own_pods_alone(values: dict[str, Any]) -> None:
    pods = [w.pod["metadata"]["labels"].items() for w in workloads(render(values))]
    for one in (w for w in workloads(render(values)) if w.kind == "Deployment"):
        selector = one.body["spec"]["selector"]["matchLabels"].items()
        assert [labels for labels in pods if selector <= labels] == [one.pod["metadata"]["labels"].items()]


@pytest.mark.parametrize("name", ENABLED)
def test_files_are_where_they_are_mounted(name: str) -> None:
    one = workload(name)
    assert environment(one.container)["KBACKUP_CONFIG"] == f"{mounts(one)['config']}/kbackup.toml"
    args = one.container["args"]
    assert ("--metrics-file" in args) == (name in SCHEDULED)
    if name in SCHEDULED:
        assert args[args.index("--metrics-file") + 1] == f"{mounts(one)['metrics']}/{name}.prom"


@pytest.mark.parametrize("values", ALL_VALUES, ids=["everything", "follow"])
def test_services_find_their_pods(values: dict[str, Any]) -> None:
    resources = render(values)
    services = [r for r in resources if r.kind == "Service"]
    assert services
    for service in services:
        spec = service.body["spec"]
        selector = spec["selector"].items()
        chosen = [w.pod for w in workloads(resources) if selector <= w.pod["metadata"]["labels"].items()]
        assert len(chosen) == (4 if service.component == "driver" else 1), service.name
        for pod in chosen:
            offered = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
            for port in spec["ports"]:
                assert offered[port["name"]] == port["port"]
                assert port["targetPort"] in (port["name"], port["port"])


@pytest.mark.parametrize("values", ALL_VALUES, ids=["everything", "follow"])
def test_services_do_not_become_variables(values: dict[str, Any]) -> None:
    """A variable such as KBACKUP_FOLLOW_PORT could be taken for a key."""
    assert {w.pod["spec"]["enableServiceLinks"] for w in workloads(render(values))} == {False}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_probes_of_followers(name: str) -> None:
    follower = workload(name)
    container = follower.container
    listen = container["args"][container["args"].index("--listen") :]
    config = config_of(["backup", "--follow", *listen], {})
    host, _, port = (config.follow.listen or "").rpartition(":")
    assert (host, int(port)) == ("0.0.0.0", container["ports"][0]["containerPort"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": container["ports"][0]["name"]}
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 2 * config.follow.stale_after_seconds
    assert follower.body["spec"]["strategy"] == {"type": "Recreate"}
    assert follower.body["spec"]["replicas"] == 1


@pytest.mark.parametrize("name", [*FOLLOWERS, "page"])
def test_a_changed_configuration_starts_pods_anew(name: str) -> None:
    def checksum(*values: dict[str, Any]) -> object:
        return workload(name, *values).pod["metadata"]["annotations"]["checksum/config"]

    assert checksum() == checksum({"defaults": {"cores": 3}})
    assert checksum() != checksum({"config": 'archive = "s3://other/kafka"\n'})


@pytest.mark.parametrize("name", ENABLED)
def test_pods_have_the_time_to_end(name: str) -> None:
    """25 seconds after SIGTERM a follower ends by itself."""
    assert workload(name).pod["spec"]["terminationGracePeriodSeconds"] > 25


def test_nobody_else_connects_to_the_pods() -> None:
    """Only the page and the metrics are reached from outside the namespace."""
    peers = {"pageFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]}
    resources = render(combine(EVERYTHING, {"networkPolicy": peers}))
    (policy,) = [r.body for r in resources if r.kind == "NetworkPolicy"]
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    pods = [w.pod["metadata"]["labels"].items() for w in workloads(resources)]
    assert pods
    assert all(selected <= labels for labels in pods), "a pod that the policy leaves open"
    rules = {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}
    assert rules == {7078: [{"podSelector": {}}], "http": peers["pageFrom"], "metrics": []}
    off = render(combine(EVERYTHING, {"networkPolicy": {"enabled": False}}))
    assert not [r for r in off if r.kind == "NetworkPolicy"]
