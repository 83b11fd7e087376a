"""Kinds of findings, which stored reports have as text."""

from __future__ import annotations

from kbackup.jobs.finding_kinds import NOTHING_COMPARED, kind_of, loss_finding, of_kind, unread_group


def test_each_finding_has_the_kind_that_it_was_written_with() -> None:
    assert kind_of(loss_finding("offsets 1 to 2 of orders-0")) == "loss"
    assert kind_of(unread_group("billing", "no coordinator")) == "unread group"
    assert kind_of(unread_group("two\nlines", "no coordinator")) == "unread group"
    assert kind_of(NOTHING_COMPARED) == "nothing compared"


def test_reports_of_earlier_versions_have_these_texts() -> None:
    """formats/restores.md promises the first two."""
    assert kind_of("loss: offsets 1 to 2 of orders-0") == "loss"
    assert kind_of("group billing can't be read: no coordinator") == "unread group"
    assert kind_of("nothing was compared: there is no record in what was chosen") == "nothing compared"


def test_a_difference_that_only_mentions_a_loss_is_none() -> None:
    assert kind_of("orders-0: of 9 records compared, 1 missing in the topic: a loss: see below") == "other"


def test_findings_of_a_kind_keep_their_order() -> None:
    findings = [loss_finding("b"), "another", loss_finding("a")]
    assert of_kind("loss", findings) == ("loss: b", "loss: a")
