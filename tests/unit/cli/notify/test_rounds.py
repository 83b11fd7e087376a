"""Long-running commands notify of incidents, and not of each round."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbackup.archive.models import Loss, Totals
from kbackup.cli.backup import RoundReporter
from kbackup.cli.common.frame import FlagValues, Frame, load_config
from kbackup.cli.common.notify import Notifier
from kbackup.cli.common.output import Reporter
from kbackup.config import Setting, SettingOrigin
from kbackup.errors import UnreachableError
from kbackup.jobs.backup.job import BackupReport
from kbackup.util.times import now
from tests.support.webhook import FakeWebhook, webhook

DOWN = UnreachableError("the source can't be reached", "check the network")


@pytest.fixture
def fake() -> Iterator[FakeWebhook]:
    with webhook() as fake:
        yield fake


def rounds(fake: FakeWebhook, **keys: object) -> RoundReporter:
    settings = {"notify.url": fake.url, "notify.on": "failure,loss,success", **keys}
    flags = [Setting(path, value, SettingOrigin("flag", "--set")) for path, value in settings.items()]
    loaded = load_config(FlagValues(settings=flags))
    return RoundReporter(Frame(loaded, Reporter(), notifier=Notifier(loaded.config, "backup")), None)


def with_losses(*messages: str) -> BackupReport:
    losses = tuple(Loss(kind="retention", topic="orders", message=message) for message in messages)
    totals = Totals(topics=1, partitions=1, segments=1, records=1, bytes=1, stored_bytes=1, groups=0)
    return BackupReport(7, 6, now(), "s3://b/a", totals, (), losses, ())


def sent(fake: FakeWebhook) -> list[tuple[str, str]]:
    return [(request.json["event"], request.json["summary"]) for request in fake.requests]


def test_failed_rounds_are_one_incident(fake: FakeWebhook) -> None:
    reporter = rounds(fake)
    for _ in range(2):
        reporter.well()
        reporter.failed(DOWN, 1)
        reporter.failed(DOWN, 2)
    reporter.well()
    reporter.well()
    failed = ("failure", "the source can't be reached; check the network")
    assert sent(fake) == [failed, ("success", "the rounds succeed again")] * 2


def test_losses_of_a_round_are_sent(fake: FakeWebhook) -> None:
    rounds(fake).committed(with_losses("offsets 1 to 2 are lost", "offsets 3 to 4 are lost"))
    rounds(fake).committed(with_losses())
    rounds(fake, **{"backup.allow_loss": True}).committed(with_losses("offsets 5 to 6 are lost"))
    assert sent(fake) == [("loss", "loss: offsets 1 to 2 are lost")]
    document = fake.requests[0].json
    assert (len(document["warnings"]), document["report"]["restore_point"]) == (2, 7)
