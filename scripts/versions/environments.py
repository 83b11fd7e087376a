"""Environments of a Python and a Spark, made by uv in the cache.

They hold what kbackup depends on, and not kbackup itself: jobs run the code of the clone. The packages come from uv's
cache, as hard links where it is on the same disk. Only Spark is 0.5 GB in each.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kbackup.errors import KbackupError
from scripts.dev import cache

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "dev.txt"
_PROJECT = ROOT / "pyproject.toml"
_UV = str(Path(sys.executable).with_name("uv"))
_SETTINGS = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
_PREFIX = "versions-"
_OF_SPARK = re.compile(r"^(pyspark|delta-spark|py4j)==")


@dataclass(frozen=True)
class Environment:
    """A Python (3.11, and the path of its program) with a release of Spark. The other packages are the locked ones, or
    the `oldest` that pyproject.toml allows."""

    python: str
    program: str
    spark: str
    oldest: bool = False

    @property
    def title(self) -> str:
        packages = ", oldest packages" if self.oldest else ""
        return f"Spark {self.spark}, Python {self.python}{packages}"

    @property
    def name(self) -> str:
        """The name of the folder in the cache: another one for other packages."""
        packages = _asked() if self.oldest else _asked() + _without_spark(LOCK.read_text("utf-8"))
        digest = hashlib.sha256(packages.encode()).hexdigest()[:8]
        kind = "oldest" if self.oldest else "locked"
        return f"{_PREFIX}spark-{self.spark}-python-{self.python}-{kind}-{digest}"

    def path(self) -> Path:
        """Return the folder, which is made on first use: Spark is downloaded and built (0.4 GB, some minutes)."""
        return cache.entry(self.name, self._fill)

    def _fill(self, folder: Path) -> None:
        # The folder is renamed once it is whole: scripts must not name it.
        _uv("venv", "--no-project", "--relocatable", "--allow-existing", "--python", self.program, str(folder))
        python = ("--python", str(folder / "bin" / "python"))
        # uv would keep the archive, the wheel and its files: 1.3 GB for each release.
        with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}uv-", dir=cache.cache_root()) as scratch:
            _uv("pip", "install", *python, "--no-deps", "--cache-dir", scratch, f"pyspark=={self.spark}")
        install = ["pip", "install", *python, "--no-build", "--requirement", str(_PROJECT)]
        install += ["--extra", "native"]
        with tempfile.TemporaryDirectory() as scratch:
            if self.oldest:
                install += ["--resolution", "lowest-direct"]
            else:
                constraints = Path(scratch, "constraints.txt")
                constraints.write_text(_without_spark(LOCK.read_text("utf-8")))
                install += ["--constraint", str(constraints)]
            _uv(*install)


def _asked() -> str:
    """Return the packages that pyproject.toml asks for."""
    project = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]
    return "\n".join(project["dependencies"] + project["optional-dependencies"]["native"])


def _without_spark(lock: str) -> str:
    """Return the versions of a lock, without those that depend on the release of Spark."""
    lines = []
    for line in lock.splitlines():
        is_requirement = re.match(r"[a-z0-9]", line) is not None
        if is_requirement and not _OF_SPARK.match(line):
            lines.append(line.removesuffix("\\").rstrip())
    return "\n".join(lines) + "\n"


def locked_spark() -> str:
    """Return the release of Spark in the lock."""
    found = re.search(r"^pyspark==([\d.]+)", LOCK.read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise KbackupError(f"{LOCK} has no pyspark", "write it anew: make lock")
    return found[1]


def remove_others(kept: set[str]) -> None:
    """Remove environments of earlier locks from the cache, and what ended runs have left of theirs."""
    for path in cache.cache_root().glob(f"{_PREFIX}*"):
        if path.name.removesuffix(".lock") not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _uv(*arguments: str) -> None:
    hint = "run it by hand to see more"
    cache.run([_UV, *arguments], f"uv {' '.join(arguments[:2])}", hint, {**os.environ, **_SETTINGS})
