"""Programs in Java that ask Kafka's own classes."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.dev import tools
from scripts.dev.jars import kafka_jars, mirror_jars

_HERE = Path(__file__).parent
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


@dataclass(frozen=True)
class Java:
    """Classes of this folder, compiled into `folder`, with MirrorMaker 2's jars and the broker's."""

    folder: Path

    @property
    def command(self) -> list[str]:
        """The command line of the JVM, to which a class's name and arguments are appended."""
        return [tools.java(), "-ea", _QUIET, "-XX:TieredStopAtLevel=1", "-cp", _classpath(self.folder)]

    def run(self, name: str, *arguments: str, stdin: str = "", timeout: float = 120) -> str:
        """Run a class to its end, and return its stdout."""
        argv = [*self.command, name, *arguments]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def compiled(*sources: str) -> Iterator[Java]:
    """Compile files of this folder. A class in the package of Kafka's own may use what is private to that package."""
    with tempfile.TemporaryDirectory(prefix="kbackup-java-") as name:
        folder = Path(name)
        javac = str(Path(tools.java()).resolve().with_name("javac"))
        files = [str(_HERE / source) for source in sources]
        argv = [javac, "-nowarn", "-proc:none", "-d", str(folder), "-cp", _classpath(folder), *files]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield Java(folder)


def _classpath(folder: Path) -> str:
    return f"{folder}:{mirror_jars()}/*:{kafka_jars()}/*"
