"""Values: each one is documented, wrong ones are refused with a hint, and a workload's own win over the defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.project.infra.chart.render import (
    BASE,
    CHART,
    ENABLED,
    combine,
    environment,
    refusal,
    render,
    workload,
)
from tests.project.infra.files import documents

SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
TEXT = (CHART / "values.yaml").read_text("utf-8")


def properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The properties that a schema names, also by references."""
    found = dict(schema.get("properties", {}))
    references = [*schema.get("allOf", []), *([{"$ref": schema["$ref"]}] if "$ref" in schema else [])]
    for reference in references:
        found |= properties(SCHEMA["$defs"][reference["$ref"].removeprefix("#/$defs/")])
    return found


def value_paths(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, one in properties(schema).items():
        yield prefix + name
        yield from value_paths(one, f"{prefix}{name}.")


def keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")


def test_every_value_of_the_schema_is_in_the_file_of_values() -> None:
    (values,) = documents(CHART / "values.yaml")
    commented = set(re.findall(r"^  # ([a-z]\w+): ", TEXT, re.MULTILINE))
    assert commented == {"activeDeadlineSeconds"}
    shared = set(properties(SCHEMA["$defs"]["pod"])) | set(properties(SCHEMA["$defs"]["schedule"]))
    known = set(keys(values)) | {f"defaults.{name}" for name in commented} | {"global"}
    inherited = [rf"(mirror\.)?\w+\.({'|'.join(shared)})(\..*)?"]
    missing = set(value_paths(SCHEMA)) - known
    assert {path for path in missing if not re.fullmatch(inherited[0], path)} == set()
    assert {f"defaults.{name}" for name in shared} <= known


def test_every_value_of_the_file_is_in_the_schema() -> None:
    """Of the file's defaults: those in free tables (resources, labels) are Kubernetes' own."""
    (values,) = documents(CHART / "values.yaml")
    free = re.compile(r".*\.(resources|podSecurityContext|securityContext|labels)\..*")
    assert {path for path in keys(values) if not free.fullmatch(path)} <= set(value_paths(SCHEMA))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nigthly": {"enabled": True}}, "additional properties 'nigthly' not allowed"),
        ({"nightly": {"enabled": "yes"}}, "'/nightly/enabled': got string, want boolean"),
        ({"nightly": {"shedule": "0 1 * * *"}}, "'/nightly/shedule': false schema"),
        ({"nightly": {"schedule": "2 30"}}, "'/nightly/schedule': '2 30' does not match pattern"),
        ({"nightly": {"concurrencyPolicy": "None"}}, "value must be one of 'Forbid', 'Allow', 'Replace'"),
        (
            {"nightly": {"activeDeadlineSeconds": "6h"}},
            "'/nightly/activeDeadlineSeconds': got string, want integer",
        ),
        ({"follow": {"schedule": "0 1 * * *"}}, "'/follow/schedule': false schema"),
        ({"follow": {"executors": 4}}, "'/follow/executors': false schema"),
        ({"expire": {"options": "--keep-daily 30"}}, "'/expire/options': got string, want array"),
        ({"page": {"service": {"type": "Ingress"}}}, "'ClusterIP', 'NodePort', 'LoadBalancer'"),
        ({"page": {"schedule": "0 1 * * *"}}, "'/page/schedule': false schema"),
        ({"mirror": {"take": {"cores": 0}}}, "'/mirror/take/cores': minimum: got 0, want 1"),
        ({"defaults": {"enabled": True}}, "'/defaults/enabled': false schema"),
        ({"defaults": {"env": {"A-B": "c"}}}, "'A-B' does not match pattern"),
        ({"defaults": {"env": {"N": 1}}}, "'/defaults/env/N': got number, want string"),
        ({"defaults": {"terminationGracePeriodSeconds": 5}}, "minimum: got 5, want 26"),
        ({"image": {"digest": "0123"}}, "'/image/digest': '0123' does not match pattern"),
        ({"executor": {"memory": "2Gi"}}, "'/executor/memory': '2Gi' does not match pattern"),
        ({"metrics": {"volume": {"type": "RWX"}}}, "'ReadWriteMany', 'ReadWriteOnce', 'emptyDir'"),
        (
            {"metrics": {"volume": {"size": "64 MB"}}},
            "'/metrics/volume/size': '64 MB' does not match pattern",
        ),
    ],
    ids=str,
)
def test_schema_refuses(values: dict[str, Any], message: str) -> None:
    assert message in refusal(combine(BASE, values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"image": {"repository": ""}, **ENABLED["verify"]},
            "image.repository is empty; set it to the image",
        ),
        ({"config": "", **ENABLED["verify"]}, "config is empty; set it to the text of kbackup.toml"),
        ({**ENABLED["nightly"], **ENABLED["follow"]}, "which has one writer; enable one of them"),
        ({"copy": {"enabled": True}}, "copy.destination is empty; set it to"),
        ({"restore": {"enabled": True}}, "restore.id is empty; set a new id"),
        ({"mirror": {"apply": {"enabled": True}}}, "mirror.properties is empty; set it to"),
        ({"page": {"enabled": True, "ingress": {"enabled": True}}}, "page.ingress.host is empty; set it to"),
    ],
    ids=str,
)
def test_values_that_depend_on_others_are_refused_with_a_hint(values: dict[str, Any], message: str) -> None:
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


def test_workloads_take_the_defaults() -> None:
    drill = workload("drill", SHARED)
    container = drill.container
    assert environment(container)["B"] == environment(container)["C"] == "shared"
    assert container["args"][-1] == "--verbose"
    assert drill.body["spec"]["suspend"] is True
    assert environment(container)["KBACKUP_SPARK_MASTER"] == "local[8]"
    assert container["envFrom"] == [{"secretRef": {"name": "shared"}}]
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == {**restricted, "readOnlyRootFilesystem": True}


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
    values = combine(SHARED, {"drill": own})
    drill = workload("drill", values)
    container = drill.container
    variables = environment(container)
    assert {name: variables[name] for name in "ABCD"} == {"A": "", "B": "shared", "C": "shared", "D": "own"}
    assert "--verbose" not in container["args"]
    assert drill.body["spec"]["suspend"] is False
    assert variables["KBACKUP_SPARK_MASTER"] == "local[1]"
    assert container["envFrom"] == [{"secretRef": {"name": "own"}}]
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
    (account,) = [r for r in render(combine(BASE, ENABLED["drill"], values)) if r.kind == "ServiceAccount"]
    assert account.body["metadata"]["annotations"] == {"x": "", "y": "shared"}


def test_one_workload_does_not_change_the_defaults_of_another() -> None:
    values = combine(BASE, ENABLED["drill"], ENABLED["verify"], SHARED, {"drill": {"env": {"A": "drill's"}}})
    (verify,) = [r for r in render(values) if r.kind == "CronJob" and r.component == "verify"]
    assert environment(verify.container)["A"] == "shared"


def test_accounts_and_images_that_exist_are_used() -> None:
    digest = f"sha256:{'a' * 64}"
    values = {"drill": {"serviceAccount": {"name": "there"}}, "image": {"digest": digest, "tag": "latest"}}
    drill = workload("drill", values)
    assert drill.pod["spec"]["serviceAccountName"] == "there"
    assert drill.container["image"] == f"registry.example.com/kbackup@{digest}"
    resources = render(combine(BASE, ENABLED["drill"], values))
    assert [r for r in resources if r.kind == "ServiceAccount"] == []
