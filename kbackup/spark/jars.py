"""The jars that kbackup lets Spark fetch are the ones that it was tested with, by their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kbackup.errors import RefusedError

LOCK = "spark.kbackup.jars.lock"
"""The setting that names the list of the SHA-256 that jars of a session may have, as `sha256sum` writes it."""


def check_jars(jars: Iterable[str], lock: Path) -> None:
    """Raise `RefusedError` for the first of `jars` (paths or file: URLs) whose bytes are not in the list `lock`."""
    locked = {line.split()[0] for line in lock.read_text("ascii").splitlines()}
    for jar in jars:
        path = Path(unquote(urlsplit(jar).path))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in locked:
            raise RefusedError(
                f"{path} is not the jar that kbackup was tested with: its SHA-256 is {digest}",
                "remove it, and find out where it came from; to use jars of your own name them in spark.jars",
            )
