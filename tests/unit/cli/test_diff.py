"""`kbackup diff` on an archive that is there, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.printed import Kbackup


def test_a_diff_of_two_restore_points_names_topics_offsets_and_groups(root: str, kbackup: Kbackup) -> None:
    document = kbackup("diff", "1", "latest", "-a", root, "--json").json
    assert (document["a"], document["b"], document["same"]) == ("restore point 1", "restore point 2", False)
    assert [(t["topic"], t["change"]) for t in document["topics"]] == [("clicks", "gone")]
    assert document["offsets"] == [{"topic": "orders", "partition": 0, "start": [0, 0], "end": [10, 41], "added": 31}]
    assert [(g["group"], g["change"]) for g in document["groups"]] == [("billing", "changed"), ("late", "appeared")]
    assert document["groups"][0]["moved"] == [
        {"topic": "clicks", "partition": 0, "before": 5, "after": None},
        {"topic": "orders", "partition": 0, "before": 4, "after": 17},
    ]
    older = "an older version of kbackup did not capture them"
    assert document["not_compared"]["ACLs"] == f"restore point 2: {older}"


def test_a_selection_matches_what_is_on_either_side(root: str, kbackup: Kbackup) -> None:
    """It matches on either side: topic clicks is deleted in restore point 2, group late is new there."""
    found = kbackup("diff", "1", "2", "-a", root, "--topic", "clicks", "--exclude-group", "/.*/", "--json").json
    assert [t["topic"] for t in found["topics"]] == ["clicks"]
    assert (found["offsets"], found["groups"]) == ([], [])
    reverse = kbackup("diff", "2", "1", "-a", root, "-t", "clicks", "-g", "late", "--json").json
    assert reverse["topics"][0]["change"] == "appeared"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("1", "2"), 0), (("1", "2", "--exit-code"), 3), (("2", "latest", "--exit-code"), 0), (("2", "2"), 0)],
)
def test_the_exit_code_tells_of_differences_if_it_is_asked_to(
    root: str, kbackup: Kbackup, arguments: tuple[str, ...], code: int
) -> None:
    printed = kbackup("diff", *arguments, "-a", root, code=code)
    assert ("there are no differences" in printed.out) == (arguments[:2] != ("1", "2"))
    assert "not compared: ACLs" in printed.err


def test_diff_shows_a_row_per_partition_and_a_summary(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("diff", "1", "2", "-a", root)
    assert "orders 0 0 10 -> 41 31" in printed.words
    assert printed.lines[-1] == "different: 1 topics, 1 partitions (31 new offsets), 2 groups"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("1", "yesterday"), "there is no restore point yesterday"),
        (("1", "3"), "there is no restore point 3"),
        (("1", "source"), "no source cluster is named"),
        (("1", "2", "-t", "odrers"), "there is no topic odrers in restore point 1 or restore point 2"),
        (("1", "2", "-t", "/x.*/"), "no topic in restore point 1 or restore point 2 matches /x.*/"),
        (("1", "2", "-g", "lat"), "there is no group lat in restore point 1 or restore point 2"),
    ],
)
def test_names_that_mean_nothing(root: str, kbackup: Kbackup, arguments: tuple[str, ...], answer: str) -> None:
    refused = kbackup("diff", *arguments, "-a", root, "--json", code=2).json
    assert refused["error"]["message"].startswith(answer)


def test_an_archive_is_opened_only_for_restore_points(kbackup: Kbackup, tmp_path: Path) -> None:
    refused = kbackup("diff", "source", "target", "-a", str(tmp_path / "nowhere"), "--json", code=2).json
    assert "no source cluster is named" in refused["error"]["message"]
