"""Options of Spark's JVM on this machine, and the archive of the classes that it loads (class data sharing).

No record passes through the JVM, so the optimising compiler and parallel collectors never repay their cost. Half of the
time to the first task is loading and verifying classes, which HotSpot can store in an archive. The first run writes the
archive into the user's cache once its work is done, later runs map it. The JVM checks that an archive was made by the
same JVM from the same class path, and starts without it otherwise. It does not check that the file is complete: so a
file gets its name only when it is, and the name holds its size.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbackup.util.folders import cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_SHARING = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:disable -Xlog:all=error:stderr"
_KEPT_DAYS = 30
_OTHER_CLASSES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClassArchive:
    """The archive for one JVM and one Spark. `folder` is the cache."""

    folder: Path
    key: str

    def path(self) -> Path | None:
        """Return the newest complete archive; None where there is none."""
        whole = [p for p in self.folder.glob(f"spark-{self.key}-*.jsa") if _is_whole(p)]
        return max(whole, default=None)

    def options(self) -> str:
        """Return the JVM's options that use the archive; without an archive, those that record its classes."""
        path = self.path()
        if path is None:
            return f"{_SHARING} -XX:+RecordDynamicDumpInfo"
        os.utime(path)
        return f'{_SHARING} "-XX:SharedArchiveFile={path}"'

    def write(self, session: SparkSession) -> None:
        """Write the archive of the classes that the session's JVM has loaded, unless there is one.

        A failure is no error: the next start takes as long as this one.
        """
        if self.path() is not None:
            return
        made = self.folder / f"spark-{self.key}.{os.getpid()}.new"
        try:
            _dump(session, made)
            with made.open("rb") as whole:
                os.fsync(whole.fileno())
            made.rename(self.folder / f"spark-{self.key}-{made.stat().st_size}.jsa")
            self._forget_unused()
        except Exception as error:  # noqa: BLE001 (py4j's errors, and the disk's)
            log.info("Spark's classes are not kept for the next start: %s", str(error).partition("\n")[0])
        finally:
            made.unlink(missing_ok=True)

    def _forget_unused(self) -> None:
        for old in self.folder.glob("spark-*"):
            if time.time() - old.stat().st_mtime > _KEPT_DAYS * 86400:
                old.unlink(missing_ok=True)


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
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = _key(home, java)
        status = folder.stat()
    except OSError:
        return None
    # whoever could write there could give us code to run
    ours = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return ClassArchive(folder, key) if ours and os.access(folder, os.W_OK) else None


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


def _dump(session: SparkSession, path: Path) -> None:
    """Dump the loaded classes as `jcmd <pid> VM.cds dynamic_dump <path>` does: few JVMs come with jcmd."""
    context: Any = session.sparkContext
    jvm, gateway = context._jvm, context._gateway

    def array(kind: Any, *values: Any) -> Any:
        made = gateway.new_array(kind, len(values))
        for at, value in enumerate(values):
            made[at] = value
        return made

    lang = jvm.java.lang
    server = lang.management.ManagementFactory.getPlatformMBeanServer()
    bean = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    methods = lang.Class.forName("javax.management.MBeanServer").getMethods()
    invoke = next(method for method in methods if method.getName() == "invoke")
    arguments = array(lang.Object, array(lang.String, "dynamic_dump", str(path)))
    signature = array(lang.String, "[Ljava.lang.String;")
    invoke.invoke(server, array(lang.Object, bean, "vmCds", arguments, signature))
