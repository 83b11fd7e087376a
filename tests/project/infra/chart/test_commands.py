"""Commands: their arguments, variables and secrets are those of kbackup."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from kbackup.cli import cli
from kbackup.config import Config
from kbackup.config.secrets import is_secret
from kbackup.errors import EXIT_LOSS, CorruptError, NoArchiveError, UsageError, WrongKeyError
from kbackup.jobs.mirror.properties import load_flows
from tests.project.infra.chart.render import (
    BASE,
    ENABLED,
    EVERYTHING,
    FOLLOWERS,
    SCHEDULED,
    Resource,
    combine,
    environment,
    example,
    file_of,
    mounts,
    render,
    workload,
    workloads,
)
from tests.project.infra.files import INFRA, config_of

PAGE = (INFRA / "docs" / "kubernetes.md").read_text("utf-8")
EXAMPLES = {
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


def test_there_is_one_of_each_kind() -> None:
    kinds = {name: workload(name).kind for name in ENABLED}
    assert {name for name, kind in kinds.items() if kind == "CronJob"} == set(SCHEDULED)
    assert {name for name, kind in kinds.items() if kind == "Deployment"} == {*FOLLOWERS, "page"}
    assert kinds["restore"] == "Job"


@pytest.mark.parametrize("name", ENABLED)
def test_commands_and_variables_are_real(name: str, tmp_path: Path) -> None:
    one = workload(name)
    toml = file_of(render(combine(BASE, ENABLED[name])), "config", "kbackup.toml", tmp_path)
    mirrors = name.startswith("mirror-")  # check_half parses their arguments
    args = ["backup"] if mirrors else one.container["args"]
    config = config_of(args, environment(one.container) | secret(name), toml)
    assert config.archive == "s3://backups/kafka"
    assert config.s3.secret_access_key == "..."
    local = {"expire": "local[*]", "copy": "local[*]", "page": "local[*]"}
    assert config.spark.master == local.get(name, "local[2]")


@pytest.mark.parametrize(("values", "name"), [(e, name) for e, names in EXAMPLES.items() for name in names])
def test_examples_reach_a_cluster_with_the_secret_of_the_documentation(
    values: str, name: str, tmp_path: Path
) -> None:
    resources = render(example(values))
    ours = [w for w in workloads(resources) if w.component != "metrics"]
    assert sorted(w.component for w in ours) == sorted(EXAMPLES[values])
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
    run.make_context(part, [file, flag, *options])
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


def settings(config: Config) -> list[str]:
    return [f"{section}.{name}" for section in ("source", "target") for name in getattr(config, section)]


@pytest.mark.parametrize("values", EXAMPLES)
def test_secrets_come_from_secrets_alone(values: str, tmp_path: Path) -> None:
    resources = render(example(values))
    toml = file_of(resources, "config", "kbackup.toml", tmp_path)
    for one in workloads(resources):
        if one.component != "metrics":
            config = config_of(["backup"], environment(one.container), toml)
            assert settings(config) or values.startswith("mirror")
            assert not [path for path in settings(config) if is_secret(path)]
            assert not any((config.s3.access_key_id, config.s3.secret_access_key, config.encryption.key))


@pytest.mark.parametrize("name", SCHEDULED)
def test_schedules(name: str) -> None:
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
