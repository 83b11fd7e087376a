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

from kbackup.errors import FencedError, KbackupError, RefusedError, from_text
from kbackup.metrics.registry import ProgressListener, counted
from kbackup.spark.collect import collect_arrow, map_in_arrow
from kbackup.spark.jvm import jvm_has_ended
from kbackup.spark.workers import Answer, Expected, check_answer, check_worker, is_local, named_error, prepared_cluster
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
    """Counts in a task, and reports at most five times a second, from any thread. Without an `address` it reports
    nothing."""

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
            # Progress is a courtesy: the result does not depend on it.
            return

    def close(self) -> None:
        self.tell()
        if self._socket is not None:
            self._socket.close()


@contextmanager
def progress_listener(show: Show) -> Iterator[ListenerAddress]:
    """Yield the address to which tasks report: `show(records, bytes)` gets the sum over all tasks as it grows."""
    # Every account of the machine can send to the port. Messages without the token are not of our tasks.
    token = secrets.token_bytes(16)
    counts: dict[int, tuple[int, int]] = {}

    def listen() -> None:
        while message := receiving.recv(_MESSAGE.size + 1):
            if len(message) != _MESSAGE.size:
                continue
            sent, task, records, size = _MESSAGE.unpack(message)
            if secrets.compare_digest(sent, token):
                # Sums of a task and not what was added: datagrams may be lost, and a task may be tried again.
                counts[task] = (records, size)
                all_records = sum(records for records, _ in counts.values())
                all_bytes = sum(size for _, size in counts.values())
                show(all_records, all_bytes)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiving:
        receiving.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=listen, name="kbackup-progress", daemon=True)
        thread.start()
        try:
            yield ListenerAddress(receiving.getsockname()[1], token)
        finally:
            # An empty message ends the thread: closing a socket does not wake whoever waits for it.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
                waker.sendto(b"", receiving.getsockname())
            thread.join()


# Running tasks on Spark through its DataFrame API: one row for each task, results as rows, errors as errors.
#
# Spark tries a failed task again; what a task yields counts only when the task has ended well. An error of kbackup's
# own tree that a task raises comes out of `run_tasks` as that error.


T = TypeVar("T")
R = TypeVar("R")

_FIELDS: dict[str, pa.DataType] = {"task": pa.int64(), "attempt": pa.int32(), "result": pa.binary()}
_RESULT = pa.schema(_FIELDS)
_TASK = pa.schema([_RESULT.field("task"), pa.field("data", pa.binary())])
_DDL = "task long, attempt int, result binary"
# At Python's own 5 ms, uploads beside a busy task got 60 MiB/s where they get 90 with this.
_SWITCH_INTERVAL = 0.0005  # s

_PATIENCE = 2.0  # s, for a JVM that is ending

# A local task's executor is called driver: there is no other machine to name.
_HOST = re.compile(r"\(TID \d+\) \((\S+) executor \d")
_NOT_THE_SAME = re.compile(
    r"No module named '?[\w.]+'?|cannot import name .*|Can't get attribute .*"
    r"|Python in worker has different version: [\d.]+ than that in driver: [\d.]+"
)
"""Parts of Spark's text about a worker that has another kbackup or Python, or none."""

_SMALL = 512 << 10
"""Bytes of data that go with a closure: half of what a closure may have before Spark puts it into a file."""

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

        def run_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            # The number of attempts before this one.
            attempt = context.attemptNumber() if context is not None else 0
            answer = check_worker(expected)
            if answer is not None:
                yield _row(-1, attempt, answer)
            if isinstance(answer, RefusedError):
                return
            for number, task, do in _unpickled(given(), batches):
                yield from _run_task(number, attempt, task, do, address, expected)

        frame = _frame(spark, tasks)
        rows: Any = collect_arrow(map_in_arrow(frame, run_batches, _DDL))
        _count_retries(rows)
        return _results_of(rows)


def _count_retries(rows: Any) -> None:
    """Count how often tasks had to be tried again. A task has as many rows as it had results."""
    tasks = rows.column("task").to_pylist()
    attempts = rows.column("attempt").to_pylist()
    attempt_by_task = dict(zip(tasks, attempts, strict=True))
    retries = sum(attempt_by_task.values())
    counted.add("kbackup_task_retries_total", retries)


def _results_of(rows: Any) -> list[Any]:
    """Return what tasks yielded; raise an error that one of them returned."""
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

    def show(records: int, size: int) -> None:
        listener.progress(records, size, expected)

    return run_tasks(spark(), tasks, work, show)


def pack(items: Iterable[T], size_of: Callable[[T], int], room: int, most: int) -> list[tuple[T, ...]]:
    """Pack neighbouring items up to `room` bytes and `most` items together; a bigger item alone."""
    every = list(items)
    sizes = map(size_of, every)
    return [tuple(every[part]) for part in cut(sizes, room, most)]


@contextmanager
def _sent(
    spark: SparkSession, work: Work[T, R], show: Show | None, *held: object
) -> Iterator[tuple[ListenerAddress | None, Expected, Callable[[], bytes]]]:
    """Yield the address to which tasks report, the demands on their workers, and the function that gives a task the
    work. `held` are other objects that the tasks get."""
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
    packed = []
    for task in tasks:
        # A segment is 163 bytes of its task: the tasks of ten million segments are 1.6 GB before compression.
        data = pickle.dumps(task)
        packed.append(zlib.compress(data, 1))
    rows = pa.table({"task": range(len(tasks)), "data": packed}, schema=_TASK)
    # Spark makes one partition of each batch.
    batches = rows.to_batches(max_chunksize=1)
    return spark.createDataFrame(pa.Table.from_batches(batches))


def _unpickled(data: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Any, Work[Any, Any]]]:
    """Yield the number, the task and the work of each row."""
    work = pickle.loads(data)  # noqa: S301 (our own driver wrote it)
    for batch in batches:
        for row in batch.to_pylist():
            task = pickle.loads(zlib.decompress(row["data"]))  # noqa: S301 (as above)
            yield row["task"], task, work


@contextmanager
def shared(spark: SparkSession, data: bytes) -> Iterator[Callable[[], bytes]]:
    """Yield a function by which tasks get `data`; big data is deleted when the tasks have ended."""
    # Spark writes a big closure into a file and deletes it, secrets included, only when the session ends. A follower's
    # session does not end, so big data goes into a broadcast of ours.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if len(data) <= _SMALL:
        yield lambda: data
        return
    broadcast = spark.sparkContext.broadcast(data)
    try:
        yield lambda: broadcast.value
    finally:
        # If the session has died, the caller has that error already.
        with suppress(Py4JError, ConnectionError):
            broadcast.destroy()


def _run_task(
    number: int, attempt: int, task: T, work: Work[T, R], address: ListenerAddress | None, expected: Expected
) -> Iterator[pa.RecordBatch]:
    sys.setswitchinterval(_SWITCH_INTERVAL)
    reuse_freed_memory()
    with closing(ProgressSender(address, number)) as progress:
        try:
            for result in work(task, progress):
                yield _row(number, attempt, result)
        except FencedError as error:
            # As a result, not as a failure: Spark would try a failed task again, and that attempt would fence the run
            # that fenced this one.
            yield _row(number, attempt, error)
        except KbackupError as error:
            raise RuntimeError(named_error(error, expected).marker()) from None


def _row(number: int, attempt: int, result: object) -> pa.RecordBatch:
    fields = {"task": number, "attempt": attempt, "result": pickle.dumps(result)}
    return pa.RecordBatch.from_pylist([fields], schema=_RESULT)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise the errors of Spark in the block as `from_spark` converts them."""
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
    """Return the error of kbackup's tree that a task raised, or the best description of another error."""
    text = str(error)
    if known := from_text(text):
        return known
    # The traceback of Spark 4.0 and 4.1 names the machine, its text does not; later ones name it nowhere.
    host = _HOST.search(getattr(error, "_stackTrace", None) or text)
    if missing := _NOT_THE_SAME.search(text):
        worker = f"worker {host[1]}" if host is not None else "a worker"
        return RefusedError(
            f"{worker} does not have the driver's kbackup and Python: {missing[0].strip()}",
            "install what the driver has there, or send it along: PYSPARK_PYTHON and spark.archives, see spark.md",
        )
    return TaskError(f"a task failed: {_cause_in(text)}", "run again with --debug to see Spark's own words")


def _cause_in(text: str) -> str:
    """Return the line of Spark's text that names the cause: the last one with an error, else the first one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if "Error" in line or "Exception" in line:
            return line
    return lines[0] if lines else "?"


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
    """Yield a frame of the batches (of `schema`) that `work(task, progress)` yields, with one partition for each task,
    to be written to `destination`. The frame can be read within the block. Spark tries a failed task again; an error of
    kbackup's tree that a task raises is in the text of Spark's error (`errors.from_text`)."""
    from pyspark.sql.pandas.types import from_arrow_schema

    with _sent(spark, work, show, destination) as (address, expected, given):

        def run_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            answer = check_worker(expected)
            if isinstance(answer, RefusedError):
                # As text: the frame has no column for errors, and of an exception only its traceback comes back.
                raise RuntimeError(answer.marker())  # noqa: TRY004
            for number, task, do in _unpickled(given(), batches):
                with closing(ProgressSender(address, number)) as progress:
                    try:
                        yield from do(task, progress)
                    except KbackupError as error:
                        raise RuntimeError(named_error(error, expected).marker()) from None

        yield map_in_arrow(_frame(spark, tasks), run_batches, from_arrow_schema(schema))
