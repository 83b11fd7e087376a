"""Programs in Java that ask Kafka's own classes."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from kbackup.errors import KbackupError
from scripts.dev import classes, tools
from scripts.dev.jars import kafka_jars, mirror_jars
from scripts.dev.kafka import SMALL

_HERE = Path(__file__).parent
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


@dataclass(frozen=True)
class Java:
    """Classes of this folder, compiled into `folder`, with jars that they need."""

    folder: Path
    jars: Sequence[Callable[[], Path]]

    @property
    def command(self) -> list[str]:
        """The command line of the JVM, to which a class's name and arguments are appended."""
        # Behind the jars: a JVM maps an archive of classes only if its class path begins as that of the archive.
        *java, classpath = classes.java(*(jars() for jars in self.jars))
        return [*java, f"{classpath}:{self.folder}", "-ea", _QUIET, *SMALL]

    def run(self, name: str, *arguments: str, stdin: str = "", timeout: float = 300) -> str:
        """Run a class to its end, and return its stdout."""
        argv = [*self.command, name, *arguments]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout


class KafkaTools:
    """Kafka's own tools of a release, which run one after another in one JVM: most of a tool's time is the start of its
    JVM. It is started with the first tool.

    Not the console consumer: it counts the records of all its runs in one process."""

    def __init__(self, java: Java) -> None:
        self._java = java
        self._process: subprocess.Popen[str] | None = None
        self._errors = java.folder / f"errors-{id(self)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            # It ends with its stdin.
            self._process.communicate()

    def run(self, program: str, *arguments: str) -> str:
        """Run a tool, and return its stdout. Raises `KbackupError`, with all that was printed, if it fails."""
        stdin, stdout = self._streams()
        stdin.write("\t".join([program, *arguments]) + "\n")
        stdin.flush()
        printed = ""
        for line in stdout:
            text, end, status = line.rpartition("\f")
            if not end:
                printed += line
                continue
            printed += text
            if status == "0\n":
                return printed
            break
        errors = self._errors.read_text()
        raise KbackupError(f"{program} failed:\n{printed}\n{errors}\n", "read its output")

    def _streams(self) -> tuple[IO[str], IO[str]]:
        """Return the JVM's stdin and stdout."""
        if self._process is None:
            argv = [*self._java.command, "-Xmx128m", "Tools"]
            with self._errors.open("w") as errors:
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


@contextmanager
def compiled(*sources: str, jars: Sequence[Callable[[], Path]] = (kafka_jars, mirror_jars)) -> Iterator[Java]:
    """Compile files of this folder, by default with the broker's jars and MirrorMaker 2's, in this order: MirrorMaker 2
    is of an older release, and brings its clients.

    A class in the package of Kafka's own may use what is private to that package.
    """
    with tempfile.TemporaryDirectory(prefix="kbackup-java-") as name:
        folder = Path(name)
        javac = str(Path(tools.java()).resolve().with_name("javac"))
        files = [str(_HERE / source) for source in sources]
        light = [f"-J{option}" for option in SMALL]
        classpath = ":".join(f"{each()}/*" for each in jars)
        argv = [javac, *light, "-nowarn", "-proc:none", "-d", str(folder), "-cp", classpath, *files]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield Java(folder, jars)
