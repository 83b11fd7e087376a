"""Check the image and the manifests with public linters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

from tests.project.infra.files import INFRA, RESOURCES, Resource

VERSIONS = ("1.31", kubernetes_validate.latest_version())
"""Of Kubernetes; the first one has all that the manifests ask for (`podFailurePolicy` above all)."""


def hadolint(file: Path) -> list[dict[str, object]]:
    """Its findings, also of shellcheck, which it runs over every RUN."""
    argv = [str(Path(sys.executable).with_name("hadolint")), "--no-fail", "--format", "json", str(file)]
    run = subprocess.run(argv, capture_output=True, text=True, check=True)
    return list(json.loads(run.stdout))


def test_hadolint_finds_nothing() -> None:
    assert hadolint(INFRA / "image" / "Dockerfile") == []


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    text = re.sub(r"^USER .*$", "USER root", (INFRA / "image" / "Dockerfile").read_text("utf-8"), flags=re.M)
    (tmp_path / "Dockerfile").write_text(
        text.replace('touch --date="@', "touch --date=@").replace('" "$f', " $f")
    )
    assert {"DL3002"} <= {str(one["code"]) for one in hadolint(tmp_path / "Dockerfile")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", RESOURCES, ids=str)
def test_manifests_fit_the_schemas_of_kubernetes(resource: Resource, version: str) -> None:
    """Strictly: a field that Kubernetes doesn't know is an error."""
    kubernetes_validate.validate(resource.body, version, strict=True)


def test_schemas_refuse_what_is_misspelt() -> None:
    job = next(r for r in RESOURCES if r.kind == "CronJob")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**job.body, "spek": {}}, VERSIONS[0], strict=True)


def test_the_page_names_these_versions() -> None:
    page = (INFRA / "docs" / "kubernetes.md").read_text("utf-8")
    assert (
        f"schemas of Kubernetes {' and '.join(v.rpartition('.')[0] if v.count('.') > 1 else v for v in VERSIONS)},"
        in page
    )
