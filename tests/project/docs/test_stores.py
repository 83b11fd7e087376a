"""The rights that `infra/docs/stores.md` names are those of the files that it links."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

INFRA = Path(__file__).parents[3] / "infra"
TEXT = (INFRA / "docs" / "stores.md").read_text("utf-8")
ROWS = re.findall(r"^\| \[[\w ]+\]\(\.\./policies/(gcs|azure)/([\w-]+)\.\w+\)[^|]*\| (.*) \|$", TEXT, re.MULTILINE)


def permissions(cloud: str, name: str) -> set[str]:
    if cloud == "gcs":
        return {*yaml.safe_load((INFRA / "policies/gcs" / f"{name}.yaml").read_text())["includedPermissions"]}
    actions = json.loads((INFRA / "policies/azure" / f"{name}.json").read_text())["DataActions"]
    return {
        action.removeprefix("Microsoft.Storage/storageAccounts/blobServices/containers/blobs/") for action in actions
    }


@pytest.mark.parametrize("cloud", ["azure", "gcs"])
def test_roles_have_the_rights_of_the_table(cloud: str) -> None:
    told: set[str] = set()
    rows = [(name, text) for of, name, text in ROWS if of == cloud]
    assert len(rows) >= 2
    for name, text in rows:
        if not text.startswith(("the same", "the writer's")):
            told = set()
        elif text.startswith("the writer's"):
            told = permissions(cloud, "writer")
        told |= set(re.findall(r"`([\w./]+)`", text))
        assert permissions(cloud, name) == told, name


def test_the_condition_is_of_one_prefix() -> None:
    condition = yaml.safe_load((INFRA / "policies/gcs/replaced.yaml").read_text())["expression"]
    terms = condition.split(" || ")
    assert len(terms) == 6
    assert all("/objects/PREFIX/" in term for term in terms)
    assert yaml.safe_load((INFRA / "policies/gcs/replacer.yaml").read_text())["includedPermissions"] == [
        "storage.objects.delete"
    ]
