"""Hand tasks to Spark: how they are packed, how they report progress, and how their errors come back.

Only for local masters: elsewhere executors can't be assumed to reach the driver by other ways than Spark's own.
"""

from __future__ import annotations

import pickle
import re
import secrets
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from kbackup.errors import DeniedError, FencedError, KbackupError, RefusedError, UnreachableError, from_text
from kbackup.metrics.registry import ProgressListener, counted
from kbackup.spark.jvm import jvm_has_ended
from kbackup.spark.workers import Answer, Expected, check_answer, check_worker, is_local, prepared_cluster
from kbackup.store.base import Store
from kbackup.util.system import cut, reuse_freed_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MESSAGE = struct.Struct(">16sqqq")
_EVERY = 0.2  # s


class ListenerAddress(NamedTuple):
    port: int
    token: bytes


class ProgressSender:
    """Counts in a task, and reports at most five times a second, from any thread. `address` None: reports nothing."""

    def __init__(self, address: ListenerAddress | None, task: int) -> None:
        self._address, self._task = address, task
        self._records, self._bytes, self._sent_at = 0, 0, 0.0
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if address else None

    def add(self, records: int, size: int) -> None:
        with self._lock:
            self._records += records
            self._bytes += size
        if time.monotonic() - self._sent_at > _EVERY:
            self.tell()

    def tell(self) -> None:
        if self._socket is None or self._address is None:
            return
        self._sent_at = time.monotonic()
        message = _MESSAGE.pack(self._address.token, self._task, self._records, self._bytes)
        try:
            self._socket.sendto(message, ("127.0.0.1", self._address.port))
        except OSError:
            return  # progress is a courtesy: the result does not depend on it

    def close(self) -> None:
        self.tell()
        if self._socket is not None:
            self._socket.close()


@contextmanager
def progress_listener(show: Show) -> Iterator[ListenerAddress]:
    """Yield where tasks report: `show(records, bytes)` gets the sum over all tasks as it grows."""
    token = secrets.token_bytes(16)
    counts: dict[int, tuple[int, int]] = {}

    def listen() -> None:
        while message := receiving.recv(_MESSAGE.size + 1):
            if len(message) != _MESSAGE.size:
                continue
            sent, task, records, size = _MESSAGE.unpack(message)
            if secrets.compare_digest(sent, token):
                counts[task] = (records, size)
                show(sum(r for r, _ in counts.values()), sum(b for _, b in counts.values()))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiving:
        receiving.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=listen, name="kbackup-progress", daemon=True)
        thread.start()
        try:
            yield ListenerAddress(receiving.getsockname()[1], token)
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
                waker.sendto(b"", receiving.getsockname())
            thread.join()


# Running tasks on Spark through its DataFrame API: one row a task, results as rows, errors as errors.
#
# A task is retried by Spark; what it yields counts only when it ended well. An error of kbackup's own tree that
# a task raises comes out of `run_tasks` as that error.


T = TypeVar("T")
R = TypeVar("R")

_FIELDS: dict[str, pa.DataType] = {"task": pa.int64(), "attempt": pa.int32(), "result": pa.binary()}
_RESULT = pa.schema(_FIELDS)
_TASK = pa.schema([_RESULT.field("task"), pa.field("data", pa.binary())])
_DDL = "task long, attempt int, result binary"
_SWITCH = 0.0005  # s; at Python's 5 ms, uploads beside a busy task got 60 MiB/s where they get 90 with this

_PATIENCE = 2.0  # s, for a JVM that is ending

_HOST = re.compile(r"\(TID \d+\) \((\S+) executor \d")  # a local task's executor is called driver
_NOT_THE_SAME = re.compile(
    r"No module named '?[\w.]+'?|cannot import name .*|Can't get attribute .*"
    r"|Python in worker has different version: [\d.]+ than that in driver: [\d.]+"
)
"""Parts of Spark's text about a worker that has another kbackup or Python, or none."""

_SMALL = 512 << 10  # bytes; half of what a closure may have before Spark puts it into a file

Spark = Callable[[], "SparkSession"]
"""Gives the session, started when it is first asked for."""
Work = Callable[[T, ProgressSender], Iterator[R]]
Show = Callable[[int, int], None]


class TaskError(KbackupError):
    """A task failed with something that is not an error of kbackup's own tree."""


class SparkEndedError(TaskError):
    """Spark's JVM has ended in the middle of the work. Another session may do it."""

    default_hint = "find out why, for instance in the kernel's log of killed processes, and run the command again"

    def __init__(self, message: str = "Spark's JVM has ended in the middle of the work", hint: str = "") -> None:
        super().__init__(message, hint)


def run_tasks(spark: SparkSession, tasks: Sequence[T], work: Work[T, R], show: Show | None = None) -> list[R]:
    """Return all that `work(task, progress)` yields over all tasks. `work` and the tasks are pickled to the executors.
    `show(records, bytes)` is called while tasks of a local master go on."""
    if not tasks:
        return []
    with spark_errors(), _sent(spark, work, show) as (address, expected, given):

        def run_batches(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            attempt = context.attemptNumber() if context is not None else 0  # how often Spark has tried it before
            answer = check_worker(expected)
            if answer is not None:
                yield _row(-1, attempt, answer)
            if isinstance(answer, RefusedError):
                return
            for number, task, do in _unpickled(given(), batches):
                yield from _run_task(number, attempt, task, do, address)

        rows: Any = _frame(spark, tasks).mapInArrow(run_batches, _DDL).toArrow()
        attempts = dict(zip(rows.column("task").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
        counted.add("kbackup_task_retries_total", sum(attempts.values()))
        results: list[Any] = []
        for row in rows.column("result").to_pylist():
            result = pickle.loads(row)  # noqa: S301 (only our own executors write these rows)
            if isinstance(result, KbackupError):
                raise result
            if isinstance(result, Answer):
                check_answer(result)
            else:
                results.append(result)
        return results


def run_counted(
    spark: Spark, tasks: Sequence[T], work: Work[T, R], listener: ProgressListener, expected: int
) -> list[R]:
    """Run tasks and report progress to `listener`, with the expected records. Without tasks no session is started."""
    if not tasks:
        return []
    return run_tasks(spark(), tasks, work, lambda records, size: listener.progress(records, size, expected))


def pack(items: Iterable[T], size_of: Callable[[T], int], room: int, most: int) -> list[tuple[T, ...]]:
    """Pack neighbouring items up to `room` bytes and `most` items together; a bigger item alone."""
    every = [*items]
    return [tuple(every[part]) for part in cut(map(size_of, every), room, most)]


@contextmanager
def _sent(
    spark: SparkSession, work: Work[T, R], show: Show | None, *held: object
) -> Iterator[tuple[ListenerAddress | None, Expected, Callable[[], bytes]]]:
    """Yield where tasks report, the demands on their workers, and the function that gives a task the work. `held` are
    other objects that the tasks get."""
    from pyspark.serializers import CloudPickleSerializer

    data: bytes = CloudPickleSerializer().dumps(work)  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        address: ListenerAddress | None = None
        if show is not None and is_local(spark):
            address = stack.enter_context(progress_listener(show))
        expected = stack.enter_context(prepared_cluster(spark, work, *held))
        yield address, expected, stack.enter_context(shared(spark, data))


def _frame(spark: SparkSession, tasks: Sequence[T]) -> DataFrame:
    """Return a frame with a row for each task, in a partition of its own: a worker gets no other."""
    columns = {"task": range(len(tasks)), "data": [zlib.compress(pickle.dumps(task), 1) for task in tasks]}
    return spark.createDataFrame(pa.Table.from_batches(pa.table(columns, schema=_TASK).to_batches(max_chunksize=1)))


def _unpickled(data: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Any, Work[Any, Any]]]:
    """Yield the number, the task and the work of each row."""
    work = pickle.loads(data)  # noqa: S301 (our own driver wrote it)
    for batch in batches:
        for number, task in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield number, pickle.loads(zlib.decompress(task)), work  # noqa: S301 (as above)


@contextmanager
def shared(spark: SparkSession, data: bytes) -> Iterator[Callable[[], bytes]]:
    """Yield a function by which tasks get `data`; big data is deleted when the tasks have ended. Spark itself deletes
    the file of a big closure, secrets included, only when the session ends, and a follower's session does not end. Big
    data goes into a broadcast of ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if len(data) <= _SMALL:
        yield lambda: data
        return
    broadcast = spark.sparkContext.broadcast(data)
    try:
        yield lambda: broadcast.value
    finally:
        with suppress(Py4JError, ConnectionError):  # of a session that has died: that is told already
            broadcast.destroy()


def _run_task(
    number: int, attempt: int, task: T, work: Work[T, R], address: ListenerAddress | None
) -> Iterator[pa.RecordBatch]:
    sys.setswitchinterval(_SWITCH)
    reuse_freed_memory()
    with closing(ProgressSender(address, number)) as progress:
        try:
            for result in work(task, progress):
                yield _row(number, attempt, result)
        except FencedError as error:
            # as a result, not as a failure: Spark would try again, and fence the one that fenced us
            yield _row(number, attempt, error)
        except KbackupError as error:
            raise RuntimeError(error.marker()) from None


def _row(number: int, attempt: int, result: object) -> pa.RecordBatch:
    fields = {"task": number, "attempt": attempt, "result": pickle.dumps(result)}
    return pa.RecordBatch.from_pylist([fields], schema=_RESULT)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises what Spark raises in the block as `from_spark` has it."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise from_spark(error) from None
    except (Py4JError, ConnectionError, EOFError) as error:
        is_lost = isinstance(error, Py4JNetworkError | ConnectionError | EOFError)
        if is_lost or jvm_has_ended(_PATIENCE):
            raise SparkEndedError from None
        raise


def from_spark(error: Any) -> KbackupError:
    """Return the error that a task raised, or the best description of another one."""
    text = str(error)
    host = _HOST.search(getattr(error, "_stackTrace", None) or text)  # Spark's text lacks it, its traceback does not
    if known := from_text(text):
        if host is not None and isinstance(known, UnreachableError | DeniedError):  # the others may reach it
            return type(known)(f"worker {host[1]}: {known.message}", known.hint)
        return known
    if missing := _NOT_THE_SAME.search(text):
        worker = f"worker {host[1]}" if host is not None else "a worker"
        return RefusedError(
            f"{worker} does not have the driver's kbackup and Python: {missing[0].strip()}",
            "install what the driver has there, or send it along: PYSPARK_PYTHON and spark.archives, see spark.md",
        )
    lines = [line for line in text.splitlines() if line.strip()] or ["?"]
    last = next((line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[0])
    return TaskError(f"a task failed: {last.strip()}", "run again with --debug to see Spark's own words")


# Return the results of tasks as a Spark frame, for jobs whose records Spark itself writes.


@contextmanager
def batch_frame(
    spark: SparkSession,
    tasks: Sequence[T],
    work: Work[T, pa.RecordBatch],
    schema: pa.Schema,
    show: Show,
    destination: Store,
) -> Iterator[DataFrame]:
    """A frame of the batches (of `schema`) that `work(task, progress)` yields, one partition a task, to be written to
    `destination`. It can be read within the block. A task that fails is tried again by Spark, and its error of
    kbackup's tree comes with the text of Spark's (`errors.from_text`)."""
    from pyspark.sql.pandas.types import from_arrow_schema

    with _sent(spark, work, show, destination) as (address, expected, given):

        def run_batches(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            answer = check_worker(expected)
            if isinstance(answer, RefusedError):  # as text: a traceback is all that comes back
                raise RuntimeError(answer.marker())  # noqa: TRY004
            for number, task, do in _unpickled(given(), batches):
                with closing(ProgressSender(address, number)) as progress:
                    try:
                        yield from do(task, progress)
                    except KbackupError as error:
                        raise RuntimeError(error.marker()) from None

        yield _frame(spark, tasks).mapInArrow(run_batches, from_arrow_schema(schema))
