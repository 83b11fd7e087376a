"""Archives of the classes that the JVMs of tests load: class-data sharing of the JDK.

A JVM that maps such a file need not read, parse and link some thousand classes: a Kafka node starts with 1.2 s of
processor time instead of 1.9. `python -m scripts.dev fetch` writes the archives. A JVM that has none, or one that
another JVM or other jars made, starts as it would without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.dev import cache, tools

_ARCHIVE = "classes.jsa"
_RECORDING = "JDK_JAVA_OPTIONS"
"""The variable whose options every JVM of JDK 9 or later takes."""

_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A JVM would warn of an archive that it can't use."""


def java(*folders: Path) -> list[str]:
    """Return the first words of the command line of a JVM: `java`, and the class path with the jars of the folders. If
    there is an archive of the first folder, the JVM maps that."""
    archive = _entry(folders[0]) / _ARCHIVE
    options = [f"-XX:SharedArchiveFile={archive}", *_SILENT] if archive.exists() else []
    return [tools.java(), *options, "-cp", ":".join(f"{folder}/*" for folder in folders)]


def written(jars: Path, run: Callable[[], None]) -> Path:
    """Return the archive of the jars in a folder. It is written on first use: `run` starts JVMs that have these jars
    first in their class path, and the archive has the classes that these loaded."""

    def fill(folder: Path) -> None:
        lists = folder / "lists"
        lists.mkdir()
        with _recorded(lists):
            run()
        loaded = {line: None for file in sorted(lists.iterdir()) for line in file.read_text().splitlines()}
        names = folder / "classes"
        names.write_text("".join(f"{line}\n" for line in loaded))
        shutil.rmtree(lists)
        argv = [
            *java(jars),
            *("-Xshare:dump", "-XX:+UseSerialGC", "-Xlog:disable", "-Xlog:all=error:stderr"),
            *(f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={folder / _ARCHIVE}"),
        ]
        cache.run(argv, "writing an archive of classes", "use JDK 17 or 21 (JAVA_HOME)")

    return cache.entry(_entry(jars).name, fill) / _ARCHIVE


def _entry(jars: Path) -> Path:
    """Return the cache's folder of an archive: another JVM, and other jars, have another one."""
    version = hashlib.sha256(tools.java_version().encode()).hexdigest()[:12]
    return jars.with_name(f"classes-{jars.name}-{version}")


@contextmanager
def _recorded(folder: Path) -> Iterator[None]:
    """Let each JVM that starts meanwhile write the list of its classes into the folder."""
    before = os.environ.get(_RECORDING)
    os.environ[_RECORDING] = f'{before or ""} "-XX:DumpLoadedClassList={folder}/%p"'
    try:
        yield
    finally:
        if before is None:
            del os.environ[_RECORDING]
        else:
            os.environ[_RECORDING] = before
