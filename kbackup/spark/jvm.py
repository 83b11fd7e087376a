"""The JVM of Spark on this machine: its options, and the archive of the classes that it loads (class data sharing).

No record passes through the JVM, so the optimising compiler and parallel collectors never repay their cost. Most of
the time to the first task is loading and verifying classes, which HotSpot can store in an archive. The first run notes
the classes that it loads. Once its work is done, a second JVM writes their archive into the user's cache, and later
runs map it. The JVM checks that an archive was made by the same JVM from the same class path, and starts without it
otherwise. It does not check that the file is complete: so a file gets its name only when it is, and the name holds its
size.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kbackup.util.folders import cache_folder, make_own

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=192m"
"""One compiler, one collector, and no collection for the sake of classes alone."""

_SHARING = (
    *("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-Xlog:all=error:stderr"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"),  # pages that no JVM has to change
)
_KEPT_DAYS = 30
_PATIENCE = 300  # s, for writing an archive
_OTHER_CLASSES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClassArchive:
    """The archive for one JVM (`java`) and one Spark (`home`). `folder` is the cache."""

    folder: Path
    key: str
    home: Path
    java: Path

    def path(self) -> Path | None:
        """Return the newest complete archive; None where there is none."""
        whole = [p for p in self.folder.glob(f"spark-{self.key}-*.jsa") if _is_whole(p)]
        return max(whole, default=None)

    def options(self, *, note: bool) -> list[str]:
        """Return the options that use the archive; with `note` and without an archive, those that note the classes."""
        path = self.path()
        if path is None:
            return [*_SHARING, f"-XX:DumpLoadedClassList={self._classes}"] if note else []
        os.utime(path)
        return [*_SHARING, f"-XX:SharedArchiveFile={path}"]

    @property
    def due(self) -> bool:
        """True when the JVM of this process has noted its classes, and there is no archive."""
        return self._classes.exists() and self.path() is None

    def write(self, options: Sequence[str]) -> None:
        """Write the archive of the noted classes for a JVM with `options`, unless another process does.

        A failure is no error: the next start takes as long as this one.
        """
        made = self.folder / f"spark-{self.key}.{os.getpid()}.new"
        try:
            with self._alone() as alone:
                if alone and self.due:
                    self._dump(options, made)
                    made.rename(self.folder / f"spark-{self.key}-{made.stat().st_size}.jsa")
                    self._forget_unused()
        except (OSError, subprocess.SubprocessError) as error:
            log.info("Spark's classes are not kept for the next start: %s", error)
        finally:
            made.unlink(missing_ok=True)

    def forget_classes(self) -> None:
        """Remove the note of this process."""
        self._classes.unlink(missing_ok=True)

    @property
    def _classes(self) -> Path:
        return self.folder / f"spark-{self.key}.{os.getpid()}.classes"

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield whether no other process writes an archive for this JVM and Spark."""
        with (self.folder / f"spark-{self.key}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _dump(self, options: Sequence[str], made: Path) -> None:
        sharing = (
            "-Xshare:dump",
            f"-XX:SharedClassListFile={self._classes}",
            f"-XX:SharedArchiveFile={made}",
        )
        subprocess.run(  # noqa: S603 (the JVM that Spark runs in)
            [self.java, *LIGHT.split(), *sharing, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=True,
        )
        with made.open("rb") as whole:
            os.fsync(whole.fileno())

    def _forget_unused(self) -> None:
        for old in self.folder.glob("spark-*"):
            with suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > _KEPT_DAYS * 86400:
                    old.unlink()


def class_archive(env: Mapping[str, str] = os.environ) -> ClassArchive | None:
    """Return the class archive of this machine's Spark.

    None where classes may come from other places than Spark's own jars, where there is no JVM, or no folder that only
    the user can write.
    """
    home, java = _spark_home(env), _java(env)
    if home is None or java is None or (home / "conf").exists() or any(map(env.get, _OTHER_CLASSES)):
        return None
    folder = cache_folder(env)
    if folder is None:
        return None
    try:
        make_own(folder)  # whoever could write there could give us code to run
        key = _key(home, java)
    except OSError:
        return None
    return ClassArchive(folder, key, home, java) if os.access(folder, os.W_OK) else None


def _key(home: Path, java: Path) -> str:
    """Return a checksum of the JVM, its options and the files of the class path, by which it accepts an archive."""
    checksum = hashlib.sha256(LIGHT.encode())
    modules = java.parents[1] / "lib" / "modules"
    for file in (java, *filter(Path.exists, [modules]), *sorted((home / "jars").iterdir())):
        status = file.stat()
        checksum.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return checksum.hexdigest()[:16]


def _is_whole(path: Path) -> bool:
    size = path.stem.rpartition("-")[2]
    return size.isdecimal() and path.stat().st_size == int(size)


def _spark_home(env: Mapping[str, str]) -> Path | None:
    if home := env.get("SPARK_HOME"):
        return Path(home)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _java(env: Mapping[str, str]) -> Path | None:
    """Return the `java` that Spark's scripts start."""
    home = env.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else env.get("PATH"))
    return Path(found).resolve() if found else None
