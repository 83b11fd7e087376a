"""Return the results of tasks as a Spark frame, for jobs whose records Spark itself writes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from kbackup.errors import KbackupError, RefusedError
from kbackup.spark.progress import Address, ProgressReceiver, ProgressSender
from kbackup.spark.tasks import Show, Work, shared
from kbackup.spark.workers import check_worker, is_local, prepared_cluster
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


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
    from pyspark.serializers import CloudPickleSerializer
    from pyspark.sql.pandas.types import from_arrow_schema

    every = [pickle.dumps(task) for task in tasks]
    data: bytes = CloudPickleSerializer().dumps((work, every))  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        address: Address | None = None
        if is_local(spark):
            address = stack.enter_context(ProgressReceiver(show)).address
        expected = stack.enter_context(prepared_cluster(spark, work, destination))
        given = stack.enter_context(shared(spark, data))

        def run_batches(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            answer = check_worker(expected)
            if isinstance(answer, RefusedError):  # as text: a traceback is all that comes back
                raise RuntimeError(answer.marker())  # noqa: TRY004
            do, every = pickle.loads(given())  # noqa: S301 (our own driver wrote it)
            for batch in batches:
                numbers: list[int] = batch.column(0).to_numpy().tolist()
                for number in numbers:
                    progress = ProgressSender(address, number)
                    try:
                        yield from do(pickle.loads(every[number]), progress)  # noqa: S301 (as above)
                    except KbackupError as error:
                        raise RuntimeError(error.marker()) from None
                    finally:
                        progress.close()

        count = len(tasks)
        yield spark.range(count, numPartitions=count).mapInArrow(run_batches, from_arrow_schema(schema))
