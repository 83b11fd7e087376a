"""The manifests: every command parses, every name that one file has from another is there, nothing runs as root."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from kbackup.cli import cli
from kbackup.config.secrets import is_secret
from kbackup.errors import EXIT_LOSS, CorruptError, NoArchiveError, UsageError, WrongKeyError
from kbackup.jobs.mirror.properties import load_flows
from tests.project.infra.files import (
    KUBERNETES,
    OURS,
    PATCHES,
    RESOURCES,
    ROOT,
    WORKLOADS,
    Resource,
    config_of,
    documents,
    env_file,
    kustomization,
    spark_on_kubernetes,
    variables,
)

TOML = KUBERNETES / "base" / "kbackup.toml"
DOCUMENT = (ROOT / "infra" / "docs" / "kubernetes.md").read_text("utf-8")
FOLDERS = sorted(path.parent for path in KUBERNETES.rglob("kustomization.yaml"))


def environment(workload: Resource) -> dict[str, str]:
    """All variables of its container but those of its secret."""
    target = workload.path.parent / "target.env"
    return variables(workload.container) | (env_file(target) if target.exists() else {})


def secret(workload: Resource) -> dict[str, str]:
    """The secret's variables, as the documentation has them."""
    (example,) = re.findall(r"```ini\n(.*?)```", DOCUMENT, re.DOTALL)
    named = dict(line.strip().split("=", 1) for line in example.strip().splitlines())
    if not (workload.path.parent / "target.env").exists():
        return named
    return {name.replace("SOURCE", "TARGET"): value for name, value in named.items()}


def test_there_is_one_of_each() -> None:
    commands = {workload.container["args"][0] for workload in OURS}
    assert {w.kind for w in OURS} == {"CronJob", "Job", "Deployment"}
    assert (
        commands
        == {"backup", "mirror", "drill", "restore"}
        <= set(cli.list_commands(cli.make_context("", ["list"])))
    )


HALVES = [w for w in OURS if w.container["args"][0] == "mirror"]


@pytest.mark.parametrize("workload", HALVES, ids=str)
def test_halves_of_a_mirror(workload: Resource) -> None:
    """Each knows one cluster, and the archive that both share."""
    name, part, file, half, *options = workload.container["args"]
    assert (name, part) == ("mirror", "run")
    command = cli.get_command(cli.make_context("", ["list"]), name)
    assert isinstance(command, click.Group)
    run = command.get_command(click.Context(command), part)
    assert run is not None
    run.make_context(part, [file, half, *options])
    config = config_of(["backup"], environment(workload) | secret(workload), TOML)
    (flow,) = load_flows(
        workload.path.parent / Path(file).name, config.archive, {"CLUSTER_PASSWORD": "a password"}
    ).flows
    assert (flow.name, flow.archive) == ("A->B", "s3://my-backups/A")
    known, other = flow.source_properties, flow.target_properties
    if half == "--apply":
        known, other = other, known
    assert other is None
    assert known is not None
    assert known["sasl.password"] == "a password"
    (volume,) = [v for v in workload.pod["spec"]["volumes"] if v["name"] == "mirror"]
    (mount,) = [m for m in workload.container["volumeMounts"] if m["name"] == "mirror"]
    assert file == f"{mount['mountPath']}/mm2.properties"
    (generated,) = kustomization(workload.path.parent)["configMapGenerator"]
    assert (generated["name"], generated["files"]) == (volume["configMap"]["name"], ["mm2.properties"])


@pytest.mark.parametrize("workload", [w for w in OURS if w not in HALVES], ids=str)
def test_commands_and_variables_are_real(workload: Resource) -> None:
    config = config_of(workload.container["args"], environment(workload) | secret(workload), TOML)
    assert config.archive == "s3://my-backups/kafka"
    assert config.s3.secret_access_key == "..."
    assert config.spark.master == "local[2]"
    section = config.source if workload.container["args"][0] == "backup" else config.target
    assert section.keys() >= {"bootstrap.servers", "security.protocol", "sasl.username", "sasl.password"}


def test_variables_that_kubernetes_sets_for_services_are_no_keys() -> None:
    """KBACKUP_FOLLOW_PORT is not follow.port, which there isn't."""
    links: dict[str, str] = {}
    for name in (r.name for r in RESOURCES if r.kind == "Service"):
        prefix = name.upper().replace("-", "_")
        links |= dict.fromkeys(
            (
                f"{prefix}_{end}"
                for end in (
                    "SERVICE_HOST",
                    "SERVICE_PORT",
                    "SERVICE_PORT_METRICS",
                    "PORT",
                    "PORT_9464_TCP_ADDR",
                )
            ),
            "10.0.0.1",
        )
    assert "KBACKUP_FOLLOW_PORT" in links
    assert config_of(["backup"], links) == config_of(["backup"], {})


@pytest.mark.parametrize("workload", OURS, ids=str)
def test_secrets_come_from_secrets_alone(workload: Resource) -> None:
    config = config_of(workload.container["args"], environment(workload), TOML)
    settings = [f"{s}.{n}" for s in ("source", "target") for n in getattr(config, s)]
    assert settings
    assert not [path for path in settings if is_secret(path)]
    assert not any((config.s3.access_key_id, config.s3.secret_access_key, config.encryption.key))
    (name,) = [r["secretRef"]["name"] for r in workload.container["envFrom"] if "secretRef" in r]
    assert f"create secret generic {name} " in DOCUMENT


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_nothing_runs_as_root(workload: Resource) -> None:
    assert_restricted(workload.pod["spec"])


def assert_restricted(spec: dict[str, Any]) -> None:
    """Check the requirements of the pod security standard `restricted`, with the user of the image."""
    pod = spec["securityContext"]
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "infra/image/Dockerfile").read_text(), re.MULTILINE)
    assert [(str(pod["runAsUser"]), str(pod["runAsGroup"]))] == user
    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}


def test_executors_are_as_restricted() -> None:
    (template,) = documents(KUBERNETES / "spark" / "executor.yaml")
    assert_restricted(template["spec"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_kustomizations_name_what_there_is(folder: Path) -> None:
    body = kustomization(folder)
    generated = body.get("configMapGenerator", [])
    named = [*body.get("resources", []), *body.get("components", [])]
    named += [patch["path"] for patch in body.get("patches", [])]
    named += [file for one in generated for kind in ("files", "envs") for file in one.get(kind, [])]
    assert named
    assert [name for name in named if not (folder / name).exists()] == []
    for component in body.get("components", []):
        assert kustomization(folder / component)["kind"] == "Component"
    for patch in body.get("patches", []):
        target = (patch["target"]["kind"], patch["target"]["name"])
        assert target in {(r.kind, r.name) for r in RESOURCES}


def test_every_file_is_in_use() -> None:
    used = {KUBERNETES / "namespace.yaml", *(folder / "kustomization.yaml" for folder in FOLDERS)}
    for folder in FOLDERS:
        body = kustomization(folder)
        for key in ("resources", "components"):
            used |= {(folder / name).resolve() for name in body.get(key, [])}
        used |= {folder / patch["path"] for patch in body.get("patches", [])}
        for one in body.get("configMapGenerator", []):
            used |= {folder / file for kind in ("files", "envs") for file in one.get(kind, [])}
    assert {path for path in KUBERNETES.rglob("*") if path.is_file()} <= used


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_names_agree(workload: Resource) -> None:
    """Config maps, claims and service accounts are made somewhere; what is mounted is a volume."""
    made = {(r.kind, r.name) for r in RESOURCES}
    maps = {one["name"] for f in FOLDERS for one in kustomization(f).get("configMapGenerator", [])}
    spec, container = workload.pod["spec"], workload.container
    for volume in spec["volumes"]:
        if "configMap" in volume:
            assert volume["configMap"]["name"] in maps
        else:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in made
    for source in container.get("envFrom", []):
        assert "secretRef" in source or source["configMapRef"]["name"] in maps
    if account := spec.get("serviceAccountName"):
        assert ("ServiceAccount", account) in made
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
    if workload.kind == "Deployment":
        assert (
            workload.body["spec"]["selector"]["matchLabels"].items()
            <= workload.pod["metadata"]["labels"].items()
        )


def test_files_are_where_they_are_mounted() -> None:
    for workload in OURS:
        mounts = {m["name"]: m["mountPath"] for m in workload.container["volumeMounts"]}
        assert variables(workload.container)["KBACKUP_CONFIG"] == f"{mounts['config']}/kbackup.toml"
        args = workload.container["args"]
        if "--metrics-file" in args:
            assert args[args.index("--metrics-file") + 1].startswith(f"{mounts['metrics']}/")
        assert ("--metrics-file" in args) == (workload.kind == "CronJob")


def test_services_find_their_pods() -> None:
    drivers = [template(patch) for patch in PATCHES]
    pods = [w.pod for w in WORKLOADS] + drivers
    for service in (r for r in RESOURCES if r.kind == "Service"):
        spec = service.body["spec"]
        chosen = [p for p in pods if spec["selector"].items() <= p["metadata"]["labels"].items()]
        assert chosen, service
        for pod in chosen:
            offered = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
            for port in spec["ports"]:
                assert offered[port["name"]] == port["port"]
                assert port["targetPort"] in (port["name"], port["port"])
        if scraped := service.body["metadata"].get("annotations", {}).get("prometheus.io/port"):
            assert scraped == str(spec["ports"][0]["port"])


@pytest.mark.parametrize("follower", [w for w in OURS if w.kind == "Deployment"], ids=str)
def test_probes_of_followers(follower: Resource) -> None:
    container = follower.container
    listen = container["args"][container["args"].index("--listen") :]
    config = config_of(["backup", "--follow", *listen], environment(follower), TOML)
    host, _, port = (config.follow.listen or "").rpartition(":")
    assert (host, int(port)) == ("0.0.0.0", container["ports"][0]["containerPort"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": container["ports"][0]["name"]}
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 2 * config.follow.stale_after_seconds
    assert follower.body["spec"]["strategy"] == {"type": "Recreate"}
    assert follower.body["spec"]["replicas"] == 1


def test_pods_have_the_time_to_end() -> None:
    """25 seconds after SIGTERM a follower ends by itself."""
    assert all(w.pod["spec"]["terminationGracePeriodSeconds"] > 25 for w in OURS)


def test_restore_fails_at_once_where_another_try_is_no_use() -> None:
    (job,) = [w for w in OURS if w.kind == "Job"]
    (rule,) = job.body["spec"]["podFailurePolicy"]["rules"]
    hopeless = (UsageError, NoArchiveError, WrongKeyError, CorruptError)
    assert set(rule["onExitCodes"]["values"]) == {EXIT_LOSS, *(e.exit_code for e in hopeless)}
    assert rule["onExitCodes"]["containerName"] == job.container["name"]
    assert job.pod["spec"]["restartPolicy"] == "Never"


def test_image_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    base = kustomization(KUBERNETES / "base")
    (image,) = base["images"]
    (generated,) = base["configMapGenerator"]
    assert (image["name"], image["newTag"]) == ("kbackup", version)
    assert generated["literals"] == [f"image={image['newName']}:{image['newTag']}"]
    assert f"--tag {image['newName']}:{image['newTag']} ." in DOCUMENT


def template(patch: Path) -> dict[str, Any]:
    (body,) = documents(patch)
    return Resource(patch, body["kind"], body["metadata"]["name"], body).pod  # type: ignore[return-value]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_drivers(patch: Path) -> None:
    """Spark's settings agree with the resources of the pod."""
    (body,) = documents(patch)
    (patched,) = [w for w in OURS if (w.kind, w.name) == (body["kind"], body["metadata"]["name"])]
    pod = template(patch)
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    environ = environment(patched) | variables(container)
    config = config_of(patched.container["args"], environ, TOML)
    conf, namespace = config.spark.conf, kustomization(KUBERNETES / "base")["namespace"]
    assert config.spark.master == "k8s://https://kubernetes.default.svc"
    assert container["name"] == patched.container["name"]
    assert conf["spark.driver.host"] == f"{spec['hostname']}.{spec['subdomain']}.{namespace}.svc"
    assert conf["spark.kubernetes.namespace"] == namespace
    assert conf["spark.kubernetes.container.image"] == environ["IMAGE"]
    assert conf["spark.kubernetes.driver.pod.name"] == environ["POD_NAME"]
    assert [n for n in conf if n.startswith("spark.kubernetes.") and n not in spark_on_kubernetes()] == []
    ports = {p["name"]: str(p["containerPort"]) for p in container["ports"]}
    assert ports == {"driver": conf["spark.driver.port"], "blocks": conf["spark.driver.blockManager.port"]}
    (service,) = [r for r in RESOURCES if (r.kind, r.name) == ("Service", spec["subdomain"])]
    assert service.body["spec"]["clusterIP"] == "None"
    (mount,) = container["volumeMounts"]
    (executor,) = documents(KUBERNETES / "spark" / "executor.yaml")
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/executor.yaml"
    assert (
        conf["spark.kubernetes.executor.podTemplateContainerName"]
        == executor["spec"]["containers"][0]["name"]
    )
    assert ("ServiceAccount", spec["serviceAccountName"]) in {(r.kind, r.name) for r in RESOURCES}


def test_drivers_differ_in_their_name_alone() -> None:
    one, other = (template(patch) for patch in PATCHES)
    name, other_name = one["spec"]["hostname"], other["spec"]["hostname"]
    assert name != other_name
    assert repr(one).replace(f"'{name}'", f"'{other_name}'").replace(f'"{name}.', f'"{other_name}.') == repr(
        other
    )
