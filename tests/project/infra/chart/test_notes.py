"""The notes that Helm prints after an installation name the next command."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.project.infra.chart.render import BASE, CHART, ENABLED, NAMESPACE, RELEASE, combine, helm, workload


@pytest.fixture
def notes(tmp_path: Path) -> Callable[..., str]:
    """Return the notes of a release; the chart asks for a newer Kubernetes than Helm supposes without a cluster."""
    chart = tmp_path / "kbackup"
    shutil.copytree(CHART, chart)
    metadata = chart / "Chart.yaml"
    metadata.write_text(re.sub("^kubeVersion.*\n", "", metadata.read_text("utf-8"), flags=re.MULTILINE))

    def show(*values: dict[str, Any]) -> str:
        options = ("--namespace", NAMESPACE, "--dry-run=client", "--no-hooks")
        run = helm("install", RELEASE, str(chart), *options, values=combine(*values))
        assert run.returncode == 0, run.stderr
        return run.stdout.partition("NOTES:\n")[2]

    return show


def test_notes_name_the_command_of_the_first_backup(notes: Callable[..., str]) -> None:
    name = workload("nightly").name
    assert f"create job first --from=cronjob/{name}\n" in notes(BASE, ENABLED["nightly"])


def test_notes_find_the_report_of_a_restore(notes: Callable[..., str]) -> None:
    text = notes(BASE, ENABLED["restore"], {"restore": {"dryRun": True}})
    assert "A dry run: nothing is restored." in text
    (selector,) = re.findall(r"--selector (\S+)", text)
    chosen = dict(label.split("=") for label in selector.split(","))
    assert chosen.items() <= workload("restore").pod["metadata"]["labels"].items()


def test_notes_say_that_nothing_is_enabled(notes: Callable[..., str]) -> None:
    assert "No workload is enabled" in notes({})
