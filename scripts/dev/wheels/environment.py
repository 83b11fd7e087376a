"""A fresh environment of one Python, with the wheel and all extras."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from scripts.dev import cache

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements" / "dev.txt"
_UV = str(Path(sys.executable).with_name("uv"))
_SETTINGS = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}


def build(folder: Path) -> Path:
    """Build the sdist, and of it the wheel; return the wheel's path."""
    _uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return sorted(project["optional-dependencies"])


@dataclass(frozen=True)
class Environment:
    folder: Path

    def install(self, python: str, wheel: Path) -> None:
        """Make the environment for a Python, of the locked packages; the wheel asks for them as pip reads it."""
        _uv("venv", "--no-project", "--python", python, str(self.folder))
        ours = ["--python", str(self.program("python"))]
        _uv("pip", "install", *ours, "--constraint", str(LOCK), f"{wheel}[{','.join(extras())}]")
        _uv("pip", "check", *ours)

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in an empty folder, with a cache of its own."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        env = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
        argv = [str(self.program(name)), *arguments]
        return subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)


def _uv(*arguments: str) -> None:
    hint = "run it by hand to see more; the locked packages must be there for each Python"
    cache.run([_UV, *arguments], f"uv {' '.join(arguments[:2])}", hint, _SETTINGS)
