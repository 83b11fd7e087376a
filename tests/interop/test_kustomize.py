"""The manifests as kustomize puts them together, against the schemas of Kubernetes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from scripts.dev.programs import KUSTOMIZE, binary
from tests.project.infra.files import KUBERNETES, kustomization
from tests.project.infra.test_linters import VERSIONS

FOLDERS = sorted(
    path.parent
    for path in KUBERNETES.rglob("kustomization.yaml")
    if kustomization(path.parent)["kind"] == "Kustomization"
)


def build(folder: Path) -> list[dict[str, Any]]:
    run = subprocess.run([binary(KUSTOMIZE), "build", folder], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return list(yaml.safe_load_all(run.stdout))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_what_is_built_is_valid(folder: Path) -> None:
    built = build(folder)
    assert built
    for body in built:
        for version in VERSIONS:
            kubernetes_validate.validate(body, version, strict=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_names_are_those_that_were_generated(folder: Path) -> None:
    """Of config maps, to which kustomize gives names of their own; all of it is in one namespace, with one image."""
    built = build(folder)
    made = {body["metadata"]["name"] for body in built if body["kind"] == "ConfigMap"}
    text = yaml.safe_dump_all(built)
    assert {body["metadata"].get("namespace") for body in built} == {"kbackup"}
    assert set(re.findall(r"configMap(?:Ref)?:\n\s+name: (\S+)", text)) <= made
    base = kustomization(KUBERNETES / "base")["images"][0]
    assert set(re.findall(r"image: (\S*kbackup\S*)", text)) <= {f"{base['newName']}:{base['newTag']}"}
