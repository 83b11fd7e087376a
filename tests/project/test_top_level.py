"""What stands at the top of the tree: a file that a tool or a person left there by accident is seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

FOLDERS = {".ci", "formats", "infra", "kbackup", "requirements", "scripts", "tests"}
FILES = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "NOTICE", "README.md", "SECURITY.md"),
    *("Makefile", "pyproject.toml", ".gitignore"),
}


def test_only_the_known_folders_and_files_stand_at_the_top() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tops = {path.partition("/")[0] for path in listed.splitlines()}
    assert tops == FOLDERS | FILES
