"""Print the plan, and try each Python: python -m scripts.dev.wheels"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kbackup.errors import KbackupError
from scripts.dev import tools
from scripts.dev.wheels.environment import Environment, build
from scripts.dev.wheels.smoke import try_commands


def main() -> None:
    print(tools.pythons_plan(), flush=True)
    with tempfile.TemporaryDirectory(prefix="kbackup-wheels-") as folder, ThreadPoolExecutor(2) as pool:
        wheel = build(Path(folder) / "dist")
        trials = [
            pool.submit(_try, version, path, Path(folder) / f"python{version}", wheel)
            for version, path in tools.pythons().items()
            if path is not None
        ]
        for trial in trials:
            print(trial.result(), flush=True)


def _try(version: str, python: str, folder: Path, wheel: Path) -> str:
    start = time.monotonic()
    environment = Environment(folder)
    environment.install(python, wheel)
    tried = try_commands(environment)
    return f"Python {version}: installed with all extras, {tried} commands; {time.monotonic() - start:.0f}s"


if __name__ == "__main__":
    try:
        main()
    except KbackupError as error:
        sys.exit(f"error: {error}")
