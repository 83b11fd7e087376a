"""A restore of a window in time, cut off between its transactions and resumed: nothing is lost, nothing is there twice,
and what the attempts have counted between them is what the map has."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbackup.config.models import Restore
from kbackup.jobs.restore.job import restore
from kbackup.store.file import FileStore
from tests.faults.conftest import Counting
from tests.faults.dying import Wish
from tests.faults.process import run
from tests.faults.shop import Shop
from tests.support.truth import in_archive, in_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOW, HIGH = 10**12 + 37, 10**12 + 480


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param(Wish("kill job", "before", "transaction", 2), marks=pytest.mark.soak),
        Wish("kill job", "after", "transaction", 3),
    ],
    ids=lambda wish: wish.name,
)
def test_killed_and_resumed(wish: Wish, shop: Shop, archive: Path, tmp_path: Path, spark: SparkSession) -> None:
    store, id_ = FileStore(archive), f"window-{secrets.token_hex(4)}"
    arguments = [
        *("restore", "--json", store.url, f"--bootstrap-server={shop.broker.bootstrap}", "--no-groups"),
        *(f"--map-regex=^={id_}-", f"--restore-id={id_}", f"--from-time={LOW}", f"--to-time={HIGH}"),
        *("--set=restore.transaction_bytes=4000", "--set=spark.master=local[2]"),
    ]
    dead = run(tmp_path / "dead", arguments, wish)
    assert dead.code == -9, dead.err
    # what is asked for now does not matter: the plan stands
    options = Restore(restore_id=id_, from_time="2h ago", no_groups=True, transaction_bytes=4000)
    report = restore(options, shop.broker.client(), store, store, lambda: spark, Counting())
    assert report.choice is not None
    assert (report.choice.from_time, report.choice.to_time) == (LOW, HIGH)

    expected = {
        tp._replace(topic=f"{id_}-{tp.topic}"): [r[1:] for r in rows if LOW <= (r.timestamp or 0) <= HIGH]
        for tp, rows in in_archive(store).items()
    }
    topics = sorted({tp.topic for tp in expected if expected[tp]})
    found = {tp: [r[1:] for r in rows] for tp, rows in in_cluster(shop.broker.bootstrap, topics).items()}
    assert found == {tp: rows for tp, rows in expected.items() if tp.topic in topics}
    assert report.records == sum(map(len, expected.values())) == HIGH - LOW + 1
