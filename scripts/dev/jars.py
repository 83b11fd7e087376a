"""The Kafka broker's jars: resolved by the Ivy that pyspark brings, locked in `kafka-jars.sha256`."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import tempfile
from pathlib import Path

from kbackup.errors import KbackupError
from scripts.dev import cache, tools

_HERE = Path(__file__).parent
LOCK = _HERE / "kafka-jars.sha256"


@functools.cache
def kafka_jars() -> Path:
    """A folder with exactly the locked jars; fetched on first use (44 MB)."""
    sums = cache.read_sums(LOCK)

    def fill(folder: Path) -> None:
        _resolve(folder)
        cache.check_sums(folder, sums)

    name = f"kafka-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    folder = cache.entry(name, fill)
    cache.check_sums(folder, sums)
    return folder


def lock() -> None:
    """Write `kafka-jars.sha256` anew from what `ivy.xml` resolves to."""
    with tempfile.TemporaryDirectory() as folder:
        _resolve(Path(folder))
        jars = sorted(Path(folder).iterdir())
        lines = [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars]
    LOCK.write_text("".join(lines))


def _resolve(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        argv = [
            tools.java(),
            f"-Dkbackup.ivy.cache={scratch}",
            *("-jar", str(_ivy_jar())),
            *("-settings", str(_HERE / "ivysettings.xml")),
            *("-ivy", str(_HERE / "ivy.xml")),
            *("-confs", "default"),
            *("-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        cache.run(argv, "resolving the Kafka broker's jars", "check that the Maven repository can be reached")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise KbackupError("pyspark: not installed", "run: make venv")
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
