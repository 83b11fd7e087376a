"""The lines of README and kubernetes.md that install kbackup name files, extras and values that are there.

`make wheels` runs the line of uvx in a clone.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib

import pytest

from scripts.dev.cache import HELM, binary
from tests.project.docs.documents import ROOT, blocks
from tests.project.infra.chart import EXAMPLES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PAGES = {"README.md", "kubernetes.md", "nightly-backup.md", "spark.md"}


def lines_of(program: str) -> list[list[str]]:
    """Return the lines of these pages that call a program, as words."""
    found: list[list[str]] = []
    for code in blocks():
        if code.document.name in PAGES and code.language == "sh":
            for line in code.text.replace("\\\n", " ").splitlines():
                if line.strip().startswith(f"{program} "):
                    found.append(shlex.split(line, comments=True))
    return found


@pytest.mark.parametrize("program", ["pip", "pipx", "uvx"])
def test_readme_has_a_line_for_each_installer_with_extras_that_exist(program: str) -> None:
    lines = lines_of(program)
    assert lines, "no line"
    for line in lines:
        (extras,) = [match[1] for word in line if (match := re.fullmatch(r"\.\[([\w,]+)\]", word))]
        assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys(), line


def test_lines_of_docker_build_this_version_from_the_dockerfile() -> None:
    lines = [line for line in lines_of("docker") if line[1] == "build"]
    assert len(lines) == 2, "README and kubernetes.md"
    for line in lines:
        assert (ROOT / line[line.index("--file") + 1]).is_file(), line
        assert line[line.index("--tag") + 1].endswith(f"kbackup:{PROJECT['version']}"), line
        assert line[-1] == ".", line


def test_lines_of_helm_render_the_chart_with_the_examples() -> None:
    lines = [line for line in lines_of("helm") if line[1] == "upgrade"]
    assert len(lines) >= 4
    examples = {path.name: str(path) for path in EXAMPLES}
    for line in lines:
        assert line[1:3] == ["upgrade", "--install"], line
        arguments = [examples.get(word, word) for word in line[3:]]
        command = [str(binary(HELM)), "template", *arguments, "--kube-version", "1.31.0"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (run.returncode, run.stderr) == (0, ""), line
        assert "kind: " in run.stdout, line
