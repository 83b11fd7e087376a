"""Check the image with a public linter."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.project.infra.files import INFRA


def hadolint(file: Path) -> list[dict[str, object]]:
    """Its findings, also of shellcheck, which it runs over every RUN."""
    argv = [str(Path(sys.executable).with_name("hadolint")), "--no-fail", "--format", "json", str(file)]
    run = subprocess.run(argv, capture_output=True, text=True, check=True)
    return list(json.loads(run.stdout))


def test_hadolint_finds_nothing() -> None:
    assert hadolint(INFRA / "image" / "Dockerfile") == []


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    text = re.sub(r"^USER .*$", "USER root", (INFRA / "image" / "Dockerfile").read_text("utf-8"), flags=re.M)
    (tmp_path / "Dockerfile").write_text(text)
    assert {"DL3002"} <= {str(one["code"]) for one in hadolint(tmp_path / "Dockerfile")}
