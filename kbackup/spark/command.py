"""The command line of Spark's JVM, without the programs by which Spark's scripts find it.

`spark-submit` starts a JVM of its own, Spark's launcher, which prints the command line of the next one. The launcher is
asked once for each JVM and Spark; its answer is kept in the user's cache. The class path is Spark's own, without
`_UNUSED_JARS`, and with the jars of most classes first: the JVM asks one after the other for each class.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kbackup.spark.jvm import LIGHT, ClassArchive

_UNUSED_JARS = "spark-mllib_"
"""MLlib registers its functions in every session: half a second of CPU at each start."""

_UNUSED_OPTIONS = ("--add-modules=jdk.incubator.vector",)  # MLlib's

_FIRST_JARS = (
    *(
        "spark-catalyst_",
        "spark-core_",
        "scala-library-",
        "spark-sql-api_",
        "log4j-core-",
        "jackson-databind-",
    ),
    *("spark-sql_", "hadoop-client-api-", "arrow-vector-", "spark-network-common_", "hadoop-client-runtime-"),
    *(
        "netty-common-",
        "ivy-",
        "antlr4-runtime-",
        "netty-transport-",
        "jackson-",
        "netty-buffer-",
        "log4j-api-",
    ),
)

_MAIN = "org.apache.spark.deploy.SparkSubmit"
_SHELL = "pyspark-shell"
_PATIENCE = 60  # s

# What Spark's scripts or its launcher would heed.
_VARIABLES = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "SPARK_PREPEND_CLASSES", "SPARK_TESTING")
_SETTINGS = ("extraClassPath", "extraLibraryPath", "defaultJavaOptions")


class Launch(NamedTuple):
    """The answer of Spark's launcher: the files of a JVM's class path, and its options."""

    class_path: list[str]
    options: list[str]

    def jvm_options(self) -> list[str]:
        """Return the options of every JVM of this launch."""
        return ["-cp", os.pathsep.join(self.class_path), *self.options]


def find_launch(archive: ClassArchive, settings: Mapping[str, str]) -> Launch | None:
    """Return the launch of a JVM with `settings`; None where Spark's own scripts have to find it."""
    others = any(map(os.environ.get, _VARIABLES)) or any(
        f"spark.driver.{name}" in settings for name in _SETTINGS
    )
    if others or LIGHT not in settings.get("spark.driver.extraJavaOptions", ""):
        return None
    return _kept(archive) or _ask_launcher(archive)


def java_command(
    launch: Launch,
    archive: ClassArchive,
    settings: Mapping[str, str],
    shown: Mapping[str, str],
    *,
    note: bool,
) -> list[str]:
    """Return the command line of a JVM with `settings`, of which everybody on the machine may read those in `shown`.

    With `note` it notes its classes for an archive, where there is none."""
    return [
        str(archive.java),
        *launch.jvm_options(),
        *archive.options(note=note),
        f"-Xmx{settings['spark.driver.memory']}",
        *shlex.split(settings["spark.driver.extraJavaOptions"]),
        _MAIN,
        *(word for name, value in shown.items() for word in ("--conf", f"{name}={value}")),
        _SHELL,
    ]


def _kept(archive: ClassArchive) -> Launch | None:
    try:
        return Launch(*json.loads(_file(archive).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _file(archive: ClassArchive) -> Path:
    return archive.folder / f"spark-{archive.key}.launch"


def _ask_launcher(archive: ClassArchive) -> Launch | None:
    jars = archive.home / "jars"
    launchers = jars.glob("spark-launcher_*-*.jar")
    scala = next((jar.name.split("_")[1].split("-")[0] for jar in launchers), "")
    try:
        done = subprocess.run(  # noqa: S603 (the JVM that Spark's scripts start)
            [archive.java, "-cp", f"{jars}/*", "org.apache.spark.launcher.Main", _MAIN, _SHELL],
            env={**os.environ, "SPARK_HOME": str(archive.home), "SPARK_SCALA_VERSION": scala},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = done.stdout.decode(errors="surrogateescape").lstrip("\0\n").split("\0")
    if words[1:2] != ["-cp"] or _MAIN not in words:
        return None
    options = [word for word in words[3 : words.index(_MAIN)] if not word.startswith("-Xmx")]
    launch = Launch(
        _class_path(words[2].split(os.pathsep)), [word for word in options if word not in _UNUSED_OPTIONS]
    )
    made = _file(archive).with_suffix(f".{os.getpid()}.new")
    made.write_text(json.dumps(launch))
    made.rename(_file(archive))
    return launch


def _class_path(entries: Iterable[str]) -> list[str]:
    """Return the files of a class path, those of `_FIRST_JARS` first."""
    files: dict[Path, None] = {}
    for entry in map(Path, entries):
        files |= dict.fromkeys(sorted(entry.parent.glob("*.jar")) if entry.name == "*" else [entry])
    used = [file for file in files if file.exists() and not file.name.startswith(_UNUSED_JARS)]

    def rank(file: Path) -> int:
        return next((n for n, jar in enumerate(_FIRST_JARS) if file.name.startswith(jar)), len(_FIRST_JARS))

    return [str(file) for file in sorted(used, key=rank)]
