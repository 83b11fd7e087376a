"""The Helm chart renders what Kubernetes accepts, and commands, variables and names that are kbackup's."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from kbackup.cli import cli
from kbackup.config.secrets import is_secret
from kbackup.errors import EXIT_LOSS, CorruptError, NoArchiveError, UsageError, WrongKeyError
from kbackup.mirror.properties.flows import load_flows
from tests.project.infra.chart import (
    BASE,
    CHART,
    DEFAULTS,
    DRIVERS,
    ENABLED,
    EVERYTHING,
    FOLLOWERS,
    FULLNAME,
    MATRIX,
    NAMESPACE,
    SCHEDULED,
    Resource,
    combine,
    environment,
    example,
    file_of,
    helm,
    mounts,
    refusal,
    render,
    workload,
    workloads,
)
from tests.project.infra.files import INFRA, ROOT, config_of, documents, spark_on_kubernetes

VERSIONS = ("1.31", kubernetes_validate.latest_version())
"""Of Kubernetes; the first one has all that the chart asks for (`podFailurePolicy` above all)."""


@pytest.fixture(scope="module", autouse=True)
def _read_each_schema_once() -> Iterator[None]:
    """Keep the schemas of a version in memory: reading them takes ten times as long as the validation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


@pytest.mark.parametrize("name", MATRIX)
def test_objects_fit_the_schemas_of_kubernetes(name: str) -> None:
    resources = render(MATRIX[name])
    assert workloads(resources)
    for resource in resources:
        if not resource.body["apiVersion"].startswith("monitoring.coreos.com/"):
            for version in VERSIONS:
                kubernetes_validate.validate(resource.body, version, strict=True)  # unknown fields are errors, too
    assert len({(r.kind, r.name) for r in resources}) == len(resources)


def test_readme_of_the_chart_names_values_that_there_are() -> None:
    (values,) = documents(CHART / "values.yaml")
    rows = re.findall(r"^\| (`.*?) \|", (CHART / "README.md").read_text("utf-8"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(.*?)`", row)}
    assert {name.split(".")[0] for name in names} == values.keys() - {"fullnameOverride"}
    for name in names:
        at = values
        for key in name.split("."):
            assert key in at, f"README.md of the chart: {name} is not in values.yaml"
            at = at[key]


def test_nothing_is_made_until_a_workload_is_enabled() -> None:
    assert render({}) == []


@pytest.mark.parametrize("name", ["everything", "everything-set", "follow"])
def test_helm_finds_nothing_wrong(name: str) -> None:
    run = helm("lint", str(CHART), "--strict", values=MATRIX[name])
    assert run.returncode == 0, run.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in run.stdout


def test_chart_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    (chart,) = documents(CHART / "Chart.yaml")
    page = (INFRA / "docs" / "kubernetes.md").read_text("utf-8")
    assert chart["version"] == chart["appVersion"] == version
    assert f"--tag {BASE['image']['repository']}:{version} ." in page
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    shown = " and ".join(".".join(v.split(".")[:2]) for v in VERSIONS)
    assert f"schemas of\nKubernetes {shown}," in page
    icon = base64.b64decode(chart["icon"].partition(";base64,")[2])
    assert icon == (ROOT / "kbackup" / "web" / "static" / "icon.svg").read_bytes().rstrip()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nigthly": {"enabled": True}}, "additional properties 'nigthly' not allowed"),
        ({"nightly": {"enabled": "yes"}}, "'/nightly/enabled': got string, want boolean"),
        ({"nightly": {"shedule": "0 1 * * *"}}, "'/nightly/shedule': false schema"),
        ({"nightly": {"schedule": "2 30"}}, "'/nightly/schedule': '2 30' does not match pattern"),
        ({"nightly": {"activeDeadlineSeconds": "6h"}}, "'/nightly/activeDeadlineSeconds': got string, want integer"),
        ({"follow": {"executors": 4}}, "'/follow/executors': false schema"),
        ({"expire": {"options": "--keep-daily 30"}}, "'/expire/options': got string, want array"),
        ({"page": {"schedule": "0 1 * * *"}}, "'/page/schedule': false schema"),
        ({"mirror": {"take": {"cores": 0}}}, "'/mirror/take/cores': minimum: got 0, want 1"),
        ({"defaults": {"env": {"A-B": "c"}}}, "'A-B' does not match pattern"),
        ({"defaults": {"terminationGracePeriodSeconds": 5}}, "minimum: got 5, want 26"),
        ({"image": {"digest": "0123"}}, "'/image/digest': '0123' does not match pattern"),
        ({"executor": {"memory": "2Gi"}}, "'/executor/memory': '2Gi' does not match pattern"),
        ({"metrics": {"volume": {"type": "RWX"}}}, "'ReadWriteMany', 'ReadWriteOnce', 'emptyDir'"),
        ({"image": {"repository": ""}, **ENABLED["verify"]}, "image.repository is empty; set it to the image"),
        ({"config": "", **ENABLED["verify"]}, "config is empty; set it to the text of kbackup.toml"),
        ({**ENABLED["nightly"], **ENABLED["follow"]}, "which has one writer; enable one of them"),
        ({"copy": {"enabled": True}}, "copy.destination is empty; set it to"),
        ({"restore": {"enabled": True}}, "restore.id is empty; set a new id"),
        ({"mirror": {"apply": {"enabled": True}}}, "mirror.properties is empty; set it to"),
        ({"page": {"enabled": True, "ingress": {"enabled": True}}}, "page.ingress.host is empty; set it to"),
        ({"serve": {"enabled": True}}, "serve.loginsSecret is empty; set it to the secret"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_with_a_hint(values: dict[str, Any], message: str) -> None:
    assert message in refusal(combine(BASE, values))


SHARED = {
    "defaults": {
        "env": {"A": "shared", "B": "shared"},
        "extraEnv": [{"name": "C", "value": "shared"}],
        "options": ["--verbose"],
        "suspend": True,
        "cores": 8,
        "existingSecret": "shared",
        "serviceAccount": {"annotations": {"x": "shared", "y": "shared"}},
        "securityContext": {"readOnlyRootFilesystem": True},
    }
}


def test_own_values_win_over_the_defaults() -> None:
    """Also those that are empty, false or 0."""
    own = {
        "env": {"A": ""},
        "extraEnv": [{"name": "D", "value": "own"}],
        "options": [],
        "suspend": False,
        "cores": 1,
        "existingSecret": "own",
        "serviceAccount": {"annotations": {"x": ""}},
        "securityContext": {"readOnlyRootFilesystem": False},
        "resources": {"limits": {"memory": "8Gi"}},
    }
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    shared = workload("drill", SHARED)
    variables = environment(shared.container)
    assert variables["B"] == variables["C"] == "shared"
    assert shared.container["args"][-1] == "--verbose"
    assert shared.body["spec"]["suspend"] is True
    assert variables["KBACKUP_SPARK_MASTER"] == "local[8]"
    assert shared.container["envFrom"] == [{"secretRef": {"name": "shared"}}]
    assert shared.container["securityContext"] == {**restricted, "readOnlyRootFilesystem": True}
    values = combine(SHARED, {"drill": own})
    drill = workload("drill", values)
    variables = environment(drill.container)
    assert {name: variables[name] for name in "ABCD"} == {"A": "", "B": "shared", "C": "shared", "D": "own"}
    assert "--verbose" not in drill.container["args"]
    assert drill.body["spec"]["suspend"] is False
    assert variables["KBACKUP_SPARK_MASTER"] == "local[1]"
    assert drill.container["envFrom"] == [{"secretRef": {"name": "own"}}]
    assert drill.container["securityContext"] == {**restricted, "readOnlyRootFilesystem": False}
    assert drill.container["resources"] == {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
    (account,) = [r for r in render(combine(BASE, ENABLED["drill"], values)) if r.kind == "ServiceAccount"]
    assert account.body["metadata"]["annotations"] == {"x": "", "y": "shared"}


def test_accounts_and_images_that_exist_are_used() -> None:
    digest = f"sha256:{'a' * 64}"
    values = {"drill": {"serviceAccount": {"name": "there"}}, "image": {"digest": digest, "tag": "latest"}}
    drill = workload("drill", values)
    assert drill.pod["spec"]["serviceAccountName"] == "there"
    assert drill.container["image"] == f"registry.example.com/kbackup@{digest}"
    resources = render(combine(BASE, ENABLED["drill"], values))
    accounts = [r for r in resources if r.kind == "ServiceAccount"]
    assert not accounts, f"service accounts although none is wanted: {accounts}"


PAGE = (INFRA / "docs" / "kubernetes.md").read_text("utf-8")
WORKLOADS_OF = {
    "nightly": ["nightly", "expire", "drill"],
    "restore": ["restore"],
    "mirror-take": ["mirror-take"],
    "mirror-apply": ["mirror-apply"],
}
"""The workloads of each example."""


def secret(name: str) -> dict[str, str]:
    """Return the variables of a workload's secret, as the documentation has them."""
    (text,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    named = dict(line.strip().split("=", 1) for line in text.strip().splitlines())
    if name not in ("drill", "restore"):
        return named
    return {key.replace("SOURCE", "TARGET"): value for key, value in named.items()}


@pytest.mark.parametrize("name", ENABLED)
def test_commands_and_variables_are_real(name: str, tmp_path: Path) -> None:
    one = workload(name)
    toml = file_of(render(combine(BASE, ENABLED[name])), "config", "kbackup.toml", tmp_path)
    mirrors = name.startswith("mirror-")  # check_half parses their arguments
    args = ["backup"] if mirrors else one.container["args"]
    config = config_of(args, environment(one.container) | secret(name), toml)
    assert config.archive == "s3://backups/kafka"
    assert config.stores["s3"].secret_access_key == "..."
    local = {"expire": "local[*]", "copy": "local[*]", "page": "local[*]", "serve": "local[*]"}
    assert config.spark.master == local.get(name, "local[2]")


@pytest.mark.parametrize(("values", "name"), [(e, name) for e, names in WORKLOADS_OF.items() for name in names])
def test_examples_reach_a_cluster_with_the_secret_of_the_documentation(values: str, name: str, tmp_path: Path) -> None:
    resources = render(example(values))
    ours = [w for w in workloads(resources) if w.component != "metrics"]
    assert sorted(w.component for w in ours) == sorted(WORKLOADS_OF[values])
    (one,) = [w for w in ours if w.component == name]
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    (source,) = one.container["envFrom"]
    assert f"create secret generic {source['secretRef']['name'].replace('-apply', '-take')} " in PAGE
    if values.startswith("mirror"):
        check_half(one, resources, toml, tmp_path)
        return
    config = config_of(one.container["args"], environment(one.container) | secret(name), toml)
    section = config.target if name in ("drill", "restore") else config.source
    needed = {"bootstrap.servers", "security.protocol", "sasl.username", "sasl.password"}
    assert section.keys() >= needed


def check_half(half: Resource, resources: list[Resource], toml: Path, folder: Path) -> None:
    """Check that a half of a mirror knows one cluster, and the archive that both share."""
    name, part, file, flag, *options = half.container["args"]
    assert (name, part) == ("mirror", "run")
    command = cli.get_command(cli.make_context("", ["list"]), name)
    assert isinstance(command, click.Group)
    run = command.get_command(click.Context(command), part)
    assert run is not None
    run.make_context(part, [file, flag, *options], **cli.context_settings)
    config = config_of(["backup"], environment(half.container) | secret(half.component), toml)
    properties = file_of(resources, "mirror", Path(file).name, folder)
    (flow,) = load_flows(properties, config.archive, {"CLUSTER_PASSWORD": "a password"}).flows
    assert (flow.name, flow.archive) == ("A->B", "s3://my-backups/A")
    known, other = flow.source_properties, flow.target_properties
    if flag == "--apply":
        known, other = other, known
    assert other is None
    assert known is not None
    assert known["sasl.password"] == "a password"
    assert file == f"{mounts(half)['mirror']}/mm2.properties"


@pytest.mark.parametrize("values", WORKLOADS_OF)
def test_secrets_come_from_secrets_alone(values: str, tmp_path: Path) -> None:
    resources = render(example(values))
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    for one in workloads(resources):
        if one.component != "metrics":
            config = config_of(["backup"], environment(one.container), toml)
            settings = [f"{part}.{name}" for part in ("source", "target") for name in getattr(config, part)]
            assert settings or values.startswith("mirror")
            assert not [path for path in settings if is_secret(path)], settings
            assert not any(
                (config.stores["s3"].access_key_id, config.stores["s3"].secret_access_key, config.encryption.key)
            )


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_scheduled_job_takes_its_schedule_from_the_values(name: str) -> None:
    own = {"schedule": "1 2 * * 3", "timeZone": "Europe/Berlin", "activeDeadlineSeconds": 21600}
    spec = workload(name, {name: own}).body["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("1 2 * * 3", "Europe/Berlin")
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] == 21600
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert "activeDeadlineSeconds" not in workload(name).body["spec"]["jobTemplate"]["spec"]


def test_restore_fails_at_once_where_another_try_is_no_use() -> None:
    job = workload("restore", {"restore": {"activeDeadlineSeconds": 3600}})
    (rule,) = job.body["spec"]["podFailurePolicy"]["rules"]
    hopeless = (UsageError, NoArchiveError, WrongKeyError, CorruptError)
    assert set(rule["onExitCodes"]["values"]) == {EXIT_LOSS, *(e.exit_code for e in hopeless)}
    assert rule["onExitCodes"]["containerName"] == job.container["name"]
    assert job.pod["spec"]["restartPolicy"] == "Never"
    assert job.body["spec"]["activeDeadlineSeconds"] == 3600


def test_a_restore_with_other_arguments_is_another_job() -> None:
    """A job can't be changed, so its name has a checksum of the arguments."""
    others: list[dict[str, object]] = [{}, {"dryRun": True}, {"id": "another"}, {"options": ["--strict"]}]
    names = [workload("restore", {"restore": own}).name for own in others]
    assert len(set(names)) == 4
    dry = workload("restore", {"restore": {"dryRun": True, "options": ["--topic", "orders"]}})
    assert dry.container["args"][-3:] == ["--dry-run", "--topic", "orders"]
    assert workload("restore", {"config": 'archive = "s3://other"\n'}).name == names[0]


def test_serve_has_logins_and_the_address_of_its_service(tmp_path: Path) -> None:
    resources = render(combine(BASE, ENABLED["serve"]))
    (serve,) = [w for w in workloads(resources) if w.component == "serve"]
    (service,) = [r for r in resources if (r.kind, r.component) == ("Service", "serve")]
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    options = config_of(serve.container["args"], environment(serve.container), toml).serve
    (port,) = service.body["spec"]["ports"]
    assert options.advertise.partition(".")[0] == service.name
    assert options.advertise.rpartition(":")[2] == str(port["port"])
    assert options.listen == f"0.0.0.0:{serve.container['ports'][0]['containerPort']}"
    (mount,) = [each for each in serve.container["volumeMounts"] if each["name"] == "logins"]
    files = {options.users, options.tls_certificate, options.tls_key}
    assert files == {f"{mount['mountPath']}/{name}" for name in ("users", "tls.crt", "tls.key")}
    (volume,) = [each for each in serve.pod["spec"]["volumes"] if each["name"] == "logins"]
    assert volume["secret"] == {"secretName": "kafka-logins", "defaultMode": 0o440}


def test_prometheus_finds_the_metrics_of_serve_apart_from_its_clients(tmp_path: Path) -> None:
    """By a service of its own: a load balancer that brings clients shows no metrics."""
    public: dict[str, Any] = {"serve": {"service": {"type": "LoadBalancer"}}}
    resources = render(combine(BASE, ENABLED["serve"], public))
    (serve,) = [w for w in workloads(resources) if w.component == "serve"]
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    options = config_of(serve.container["args"], environment(serve.container), toml).serve
    ports = {each["name"]: each["containerPort"] for each in serve.container["ports"]}
    assert options.metrics_listen == f"0.0.0.0:{ports['metrics']}"

    services = {r.component: r.body for r in resources if r.kind == "Service"}
    assert [each["name"] for each in services["serve"]["spec"]["ports"]] == ["kafka"]
    own = services["serve-metrics"]
    assert "type" not in own["spec"]
    assert own["spec"]["selector"].items() <= serve.pod["metadata"]["labels"].items()
    assert own["spec"]["ports"] == [{"name": "metrics", "port": ports["metrics"], "targetPort": "metrics"}]
    assert own["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])

    monitored = render(combine(BASE, ENABLED["serve"], {"metrics": {"serviceMonitor": {"enabled": True}}}))
    (monitor,) = [r.body["spec"] for r in monitored if r.kind == "ServiceMonitor"]
    (service,) = [r.body for r in monitored if (r.kind, r.component) == ("Service", "serve-metrics")]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["endpoints"]] == ["metrics"]
    assert "annotations" not in service["metadata"]


def test_page_knows_the_host_of_its_ingress(tmp_path: Path) -> None:
    resources = render(EVERYTHING)
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    (page,) = [w for w in workloads(resources) if w.component == "page"]
    (ingress,) = [r.body for r in resources if r.kind == "Ingress"]
    config = config_of(page.container["args"], environment(page.container), toml)
    (rule,) = ingress["spec"]["rules"]
    assert list(config.ui.hosts) == [rule["host"]] == ingress["spec"]["tls"][0]["hosts"]
    assert config.ui.listen == f"0.0.0.0:{page.container['ports'][0]['containerPort']}"
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert ("Service", backend["name"]) in {(r.kind, r.name) for r in resources}


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


@pytest.mark.parametrize("values", [EVERYTHING, combine(BASE, ENABLED["follow"])], ids=["everything", "follow"])
def test_objects_of_the_chart_refer_to_ones_that_it_makes(values: dict[str, Any]) -> None:
    """Nothing runs as root; config maps, claims and service accounts are made somewhere, what is mounted is a volume,
    and services find their pods."""
    resources = render(values)
    made = {(r.kind, r.name) for r in resources}
    for one in workloads(resources):
        spec = one.pod["spec"]
        assert_restricted(spec, token=one.pod["metadata"]["labels"].get("kbackup/spark") == "driver")
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
            elif "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in made
        if account := spec.get("serviceAccountName"):
            assert ("ServiceAccount", account) in made
        assert set(mounts(one)) == {v["name"] for v in spec["volumes"]}
    services = [r for r in resources if r.kind == "Service"]
    assert services
    for service in services:
        spec = service.body["spec"]
        selector = spec["selector"].items()
        chosen = [w.pod for w in workloads(resources) if selector <= w.pod["metadata"]["labels"].items()]
        assert len(chosen) == 1, service.name
        for pod in chosen:
            offered = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
            for port in spec["ports"]:
                assert offered[port["name"]] == port["port"]
                assert port["targetPort"] in (port["name"], port["port"])


@pytest.mark.parametrize("name", ENABLED)
def test_files_are_where_they_are_mounted(name: str) -> None:
    one = workload(name)
    assert environment(one.container)["KBACKUP_CONFIG"] == f"{mounts(one)['config']}/kbackup.toml"
    args = one.container["args"]
    assert ("--metrics-file" in args) == (name in SCHEDULED)
    if name in SCHEDULED:
        assert args[args.index("--metrics-file") + 1] == f"{mounts(one)['metrics']}/{name}.prom"


@pytest.mark.parametrize("name", FOLLOWERS)
def test_probes_ask_a_follower_at_its_port(name: str) -> None:
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


@pytest.mark.parametrize("name", [*FOLLOWERS, "page", "serve"])
def test_a_changed_configuration_starts_pods_anew(name: str) -> None:
    def checksum(*values: dict[str, Any]) -> object:
        return workload(name, *values).pod["metadata"]["annotations"]["checksum/config"]

    assert checksum() == checksum({"defaults": {"cores": 3}})
    assert checksum() != checksum({"config": 'archive = "s3://other/kafka"\n'})


def test_nobody_else_connects_to_the_pods() -> None:
    """Only the page, what is served and the metrics are reached from outside the namespace."""
    peers = {
        "pageFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        "serveFrom": [{"namespaceSelector": {"matchLabels": {"name": "shop"}}}],
    }
    resources = render(combine(EVERYTHING, {"networkPolicy": peers}))
    (policy,) = [r.body for r in resources if r.kind == "NetworkPolicy"]
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    pods = [w.pod["metadata"]["labels"].items() for w in workloads(resources)]
    assert pods
    assert all(selected <= labels for labels in pods), "a pod that the policy leaves open"
    rules = {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}
    assert rules == {7078: [{"podSelector": {}}], "http": peers["pageFrom"], "kafka": peers["serveFrom"], "metrics": []}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    off = render(combine(EVERYTHING, {"networkPolicy": {"enabled": False}}))
    assert not [r for r in off if r.kind == "NetworkPolicy"]


def test_pods_connect_to_the_named_peers_alone_if_some_are_named() -> None:
    brokers = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 9093}]}
    resources = render(combine(EVERYTHING, {"networkPolicy": {"egress": [brokers]}}))
    (policy,) = [r.body["spec"] for r in resources if r.kind == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    among_us = {"to": [{"podSelector": {}}], "ports": [{"port": 7078}, {"port": 7079}]}
    assert policy["egress"] == [among_us, brokers]


@pytest.mark.parametrize("name", DRIVERS)
def test_a_driver_runs_its_executors_on_kubernetes(name: str, tmp_path: Path) -> None:
    resources = render(combine(BASE, ENABLED[name], {name: {"executors": 3}, "executor": {"memory": "2g"}}))
    (one,) = [w for w in workloads(resources) if w.component == name]
    container = one.container
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    config = config_of(container["args"], environment(container), toml)
    conf = config.spark.conf
    assert config.spark.master == "k8s://https://kubernetes.default.svc"
    assert conf["spark.executor.instances"] == "3"
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.driver.host"] == environment(container)["POD_IP"]
    assert conf["spark.kubernetes.namespace"] == NAMESPACE
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert conf["spark.kubernetes.driver.pod.name"] == environment(container)["POD_NAME"]
    unknown = [n for n in conf if n.startswith("spark.kubernetes.") and n not in spark_on_kubernetes()]
    assert not unknown, f"settings that Spark on Kubernetes does not have: {unknown}"
    ports = {p["name"]: str(p["containerPort"]) for p in container["ports"]}
    assert ports == {"driver": conf["spark.driver.port"], "blocks": conf["spark.blockManager.port"]}
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "spark"]
    template = executor_of(resources, name, tmp_path)
    assert_restricted(template["spec"])
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/{name}.yaml"
    (executor,) = template["spec"]["containers"]
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == executor["name"]


def executor_of(resources: list[Resource], name: str, folder: Path) -> dict[str, Any]:
    """Return the template of the pods of a workload's executors."""
    return dict(yaml.safe_load(file_of(resources, "driver", f"{name}.yaml", folder).read_text("utf-8")))


def test_executors_run_where_and_with_what_their_driver_runs(tmp_path: Path) -> None:
    values = combine(EVERYTHING, {"defaults": DEFAULTS, "imagePullSecrets": [{"name": "registry"}]})
    resources = render(values)
    (driver,) = [w for w in workloads(resources) if w.component == "verify"]
    executor = executor_of(resources, "verify", tmp_path)
    same = ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName", "serviceAccountName")
    for field in (*same, "securityContext"):
        assert executor["spec"][field] == driver.pod["spec"][field], field
    assert executor["metadata"]["annotations"] == DEFAULTS["podAnnotations"]
    assert executor["metadata"]["labels"]["team"] == "shop"
    (container,) = executor["spec"]["containers"]
    assert container["env"] == DEFAULTS["extraEnv"]
    assert container["securityContext"] == driver.container["securityContext"]
    assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]} == {"tmp": "/tmp", "ca": "/etc/ca"}
    assert {v["name"] for v in executor["spec"]["volumes"]} == {"tmp", "ca"}
    (policy,) = [r.body for r in resources if r.kind == "NetworkPolicy"]
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    assert selected <= executor["metadata"]["labels"].items(), "the policy leaves executors open"


def test_executors_may_ask_for_less_cpu_than_they_have_tasks(tmp_path: Path) -> None:
    values = combine(BASE, ENABLED["nightly"], {"nightly": {"executors": 1}, "executor": {"cpuRequest": "500m"}})
    resources = render(values)
    (nightly,) = [w for w in workloads(resources) if w.component == "nightly"]
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    conf = config_of(nightly.container["args"], environment(nightly.container), toml).spark.conf
    assert conf["spark.kubernetes.executor.request.cores"] == "500m"
    assert conf["spark.executor.cores"] == "2"


def test_a_value_of_null_leaves_a_default_out() -> None:
    """OpenShift gives a pod its user."""
    ids: dict[str, Any] = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    pod = workload("nightly", {"defaults": {"podSecurityContext": ids}}).pod
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_only_drivers_may_make_pods() -> None:
    values = combine(BASE, ENABLED["nightly"], ENABLED["verify"], {"verify": {"executors": 1}})
    resources = render(values)
    (binding,) = [r.body for r in resources if r.kind == "RoleBinding"]
    (role,) = [r for r in resources if r.kind == "Role"]
    assert binding["roleRef"]["name"] == role.name
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": f"{FULLNAME}-verify", "namespace": NAMESPACE}]
    tokens = {w.component: w.pod["spec"].get("automountServiceAccountToken") for w in workloads(resources)}
    assert tokens == {"nightly": False, "verify": True, "metrics": False}


def volumes(one: Resource) -> list[dict[str, Any]]:
    return [volume for volume in one.pod["spec"]["volumes"] if volume["name"] == "metrics"]


def exporters(resources: list[Resource]) -> list[Resource]:
    return [w for w in workloads(resources) if w.component == "metrics"]


@pytest.mark.parametrize("name", SCHEDULED)
def test_jobs_and_the_exporter_share_a_volume(name: str) -> None:
    resources = render(combine(BASE, ENABLED[name]))
    (exporter,) = exporters(resources)
    assert (
        volumes(workload(name))
        == volumes(exporter)
        == [{"name": "metrics", "persistentVolumeClaim": {"claimName": "shop-kbackup-metrics"}}]
    )
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
    claims = [r for r in resources if r.kind == "PersistentVolumeClaim"]
    assert not claims, f"claims of volumes for a workload without metrics files: {claims}"


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
    (nightly,) = [w for w in workloads(render(combine(values, {"nightly": {"affinity": own}}))) if w.kind == "CronJob"]
    assert nightly.pod["spec"]["affinity"] == own


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
    assert shown == {"metrics", "mirror-take", "mirror-apply", "serve-metrics"}


def test_monitor_takes_rules_that_change_labels() -> None:
    rules = {
        "scrapeTimeout": "5s",
        "relabelings": [{"targetLabel": "team", "replacement": "shop"}],
        "metricRelabelings": [{"regex": "pod", "action": "labeldrop"}],
    }
    resources = render(combine(EVERYTHING, {"metrics": {"serviceMonitor": rules}}))
    (monitor,) = [r.body["spec"] for r in resources if r.kind == "ServiceMonitor"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint.items() >= rules.items()


def test_alerts_and_dashboard_are_those_of_the_files() -> None:
    resources = render(EVERYTHING)
    (rules,) = documents(CHART / "files" / "kbackup.rules.yaml")
    (alerts,) = [r.body for r in resources if r.kind == "PrometheusRule"]
    assert alerts["spec"] == rules
    (dashboard,) = [r.body for r in resources if r.kind == "ConfigMap" and r.component == "dashboard"]
    assert json.loads(dashboard["data"]["kbackup.json"]) == json.loads((CHART / "files/kbackup.json").read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
