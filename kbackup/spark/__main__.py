"""python -m kbackup.spark: write an archive of the classes that Spark loads at its start, once per installation.

The JVMs of later local sessions map that file instead of reading, parsing and linking 7,000 classes: class-data sharing
of the JDK. The JVM itself leaves the file alone where it was made by another JVM, of other jars or with other options.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from kbackup.errors import KbackupError, RefusedError
from kbackup.spark.jvm import class_archive
from kbackup.spark.session import SHARED, build_session, first_job, session_settings

# The JVM would print hundreds of lines about classes that have to be left out.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_OPTIONS = "spark.driver.extraJavaOptions"


def write(archive: Path) -> None:
    """Start Spark, run a first job, and write the loaded classes to `archive`. Raises `UnreachableError` if Spark can't
    be started, and `RefusedError` if the JVM wrote nothing."""
    from pyspark import SparkContext

    with tempfile.TemporaryDirectory(prefix=".classes-", dir=archive.parent) as folder:
        new = Path(folder, archive.name)
        usual_options = shlex.split(session_settings(None, 1, False, {})[_OPTIONS])
        # Without the present archive: the JVM would write one that adds to it.
        options = [option for option in usual_options if not option.startswith(SHARED)]
        options += _QUIET.split()
        options.append(f"-XX:ArchiveClassesAtExit={new}")
        session = build_session("local[1]", {_OPTIONS: shlex.join(options)}, 1)
        # Most classes are loaded by the first job.
        first_job(session)
        jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
        session.stop()
        # The JVM writes the archive when it ends, which it does when its stdin closes.
        jvm.stdin.close()
        jvm.wait()
        if not new.exists():
            raise RefusedError("the JVM wrote no archive of classes", "use JDK 17 or 21 (JAVA_HOME)")
        new.replace(archive)


def main() -> int:
    argparse.ArgumentParser(prog="python -m kbackup.spark", description=__doc__).parse_args()
    archive = class_archive()
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        write(archive)
    except OSError as error:
        problem = f"{archive} can't be written: {error.strerror}\n  hint: run this as the owner of {sys.prefix}"
    except KbackupError as error:
        problem = f"{error}\n  hint: {error.hint}"
    else:
        print(f"{archive}: {archive.stat().st_size >> 20} MiB")
        return 0
    print(problem, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
