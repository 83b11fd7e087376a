"""Demands on workers of other machines before a job's work is handed to them: the driver's release of kbackup, the
driver's directories, and a channel that hides secrets.

A directory is one archive only where every machine has the same directory at its path. So the driver leaves a mark in
each directory of a job. A worker's first task looks for the mark and leaves an answer beside it, which the driver looks
for when the job has ended.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kbackup import __version__
from kbackup.config.secrets import shown
from kbackup.errors import DeniedError, KbackupError, RefusedError, StoreError, UnreachableError
from kbackup.spark.session import ALLOW_PLAIN_SECRETS
from kbackup.store.base import encryption_of
from kbackup.store.file import FileStore
from kbackup.util.folders import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHARE = "mount one file system there on all machines of the cluster, or use an archive in S3"
_PROTECTED = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")


class Expected(NamedTuple):
    """Demands of a job on its workers: the driver's release, and the files `marks` in its directories. `elsewhere`:
    workers may be on other machines than the driver."""

    version: str
    marks: tuple[str, ...] = ()
    elsewhere: bool = False


class Answer(NamedTuple):
    """The files by which a worker answered to the marks of a job."""

    host: str
    files: tuple[str, ...]


def is_local(spark: SparkSession) -> bool:
    """Return whether driver and tasks share this machine."""
    return str(spark.sparkContext.master).startswith("local")


@contextmanager
def prepared_cluster(spark: SparkSession, *held: object) -> Iterator[Expected]:
    """Check that a cluster may get the objects `held`, and mark their directories while its tasks run. A directory that
    the driver may only read has no mark: nothing is written there, and checksums protect what is read."""
    if is_local(spark):
        yield Expected(__version__)
        return
    check_protection(spark, *held)
    # A name of its own: jobs of other drivers may mark the same directory at the same time.
    name = f"shared-{secrets.token_hex(16)}"
    stores = {}
    for each in held:
        for store in _directories(each):
            stores[store.address] = store
    marks: list[str] = []
    marked: list[FileStore] = []
    for store in stores.values():
        with suppress(StoreError):
            mark = store.leave_mark(name)
            marks.append(str(mark))
            marked.append(store)
    try:
        yield Expected(__version__, tuple(marks), elsewhere=True)
    finally:
        for store in marked:
            store.remove_marks(name)


_answered: set[tuple[str, ...]] = set()
"""The marks that this worker has answered to."""


def check_worker(expected: Expected) -> Answer | RefusedError | None:
    """Return, in a task, the answer of this worker to the driver; None if the worker has answered before."""
    host = socket.gethostname()
    if expected.version != __version__:
        return RefusedError(
            f"worker {host} has kbackup {__version__}, the driver has {expected.version}",
            "install the driver's release there, or send it along: PYSPARK_PYTHON and spark.archives, see spark.md",
        )
    if expected.marks in _answered:
        return None
    files: list[str] = []
    for mark in map(Path, expected.marks):
        root, hidden = mark.parents[1], mark.parent.name
        try:
            folder = Folder.at(root, [hidden])
        except OSError as error:
            return _another_directory(host, root, error)
        with folder:
            try:
                folder.status(mark.name)
            except OSError as error:
                return _another_directory(host, root, error)
            answer = mark.with_name(f"{mark.stem}-{host}-{os.getpid()}.part")
            # A worker that may not write there only reads it, or fails with its own error where a task has to write.
            with suppress(OSError):
                os.close(folder.create(answer.name, 0o666))
                files.append(str(answer))
    _answered.add(expected.marks)
    if not files:
        return None
    return Answer(host, tuple(files))


def named_error(error: KbackupError, expected: Expected) -> KbackupError:
    """Return an error of this worker's task as the driver is to show it. Other workers may reach the server that this
    one can't reach: the error names the machine."""
    # Spark's own errors name it up to Spark 4.1.
    if not expected.elsewhere or not isinstance(error, UnreachableError | DeniedError):
        return error
    return type(error)(f"worker {socket.gethostname()}: {error.message}", error.hint)


def _another_directory(host: str, root: Path, error: OSError) -> RefusedError:
    return RefusedError(f"worker {host} has another directory than the driver at {root}: {error.strerror}", _SHARE)


def check_answer(answer: Answer) -> None:
    """Raise `RefusedError` if the driver does not see what a worker wrote."""
    for file in map(Path, answer.files):
        if not file.exists():
            raise RefusedError(f"the driver does not see what worker {answer.host} writes to {file.parents[1]}", _SHARE)


def check_protection(spark: SparkSession, *held: object) -> None:
    """Raise `RefusedError` if secrets that `held` has could be read on their way to the workers."""
    if is_local(spark) or not any(map(_has_secrets, held)):
        return
    conf = spark.sparkContext.getConf()

    def on(name: str) -> bool:
        return str(conf.get(name, "false")).lower() == "true"

    if on(ALLOW_PLAIN_SECRETS) or (on("spark.authenticate") and any(map(on, _PROTECTED))):
        return
    raise RefusedError(
        f"whoever reaches the Spark cluster at {spark.sparkContext.master} could read the secrets of this job",
        "set spark.authenticate and spark.network.crypto.enabled, and spark.authenticate.secret on a standalone "
        "cluster, see spark.md; or accept it: spark.allow_plain_secrets = true",
    )


def _members(held: object) -> Iterator[tuple[str, Any]]:
    """Yield names and values of what a job's own object holds."""
    if isinstance(held, Mapping):
        yield from ((str(name), value) for name, value in held.items() if isinstance(value, str))
    elif dataclasses.is_dataclass(held):
        yield from ((field.name, getattr(held, field.name)) for field in dataclasses.fields(held))
    elif isinstance(held, tuple):
        yield from (("", value) for value in held)
    elif type(held).__module__.startswith("kbackup."):
        yield from getattr(held, "__dict__", {}).items()


def _has_secrets(held: object) -> bool:
    """Return whether an object that is sent to tasks holds passwords or data keys."""
    if encryption_of(held):  # type: ignore[arg-type]
        return True
    # What a user wrote may have anything in it, the secret of a mask for one.
    if getattr(held, "may_hold_secrets", False):
        return True
    for name, value in _members(held):
        is_secret = shown(name, value) != value if isinstance(value, str) else _has_secrets(value)
        if is_secret:
            return True
    return False


def _directories(held: object) -> list[FileStore]:
    """Return the directory stores that an object holds."""
    if isinstance(held, FileStore):
        return [held]
    stores: list[FileStore] = []
    for _, value in _members(held):
        stores += _directories(value)
    return stores
