"""This tree's kbackup in a packed environment, as spark.md has it, for executors that have none."""

from __future__ import annotations

import shutil
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pack_environment(folder: Path) -> Path:
    """Return the archive of an environment with this tree's kbackup. It links to this Python's other packages."""
    environment = folder / "packed"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "kbackup", packages / "kbackup")  # with what is compiled
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return Path(shutil.make_archive(str(environment), "gztar", environment))
