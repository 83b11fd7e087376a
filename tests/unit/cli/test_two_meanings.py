"""Names that could mean two things: labels like numbers or words, and names with the signs that options are cut at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

import kbackup as library
from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.state import State
from kbackup.archive.query.selection import Selection, exact_entry
from kbackup.archive.reader import Archive, open_archive
from kbackup.config import ConfigFiles, Setting, SettingOrigin, load
from kbackup.config.models import Backup
from kbackup.config.windows import parse_address, parse_range, parse_rule
from kbackup.errors import UsageError
from kbackup.jobs.points import remove_label
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Silent
from kbackup.migrate.archive import archive_metadata
from kbackup.store import open_store
from kbackup.web.archive_cache import ArchiveCache
from tests.support.printed import Kbackup

OLD_LABELS = {"2": 1, "latest": 1, "all": 1, "007": 1, "before": 1}
"""An older version wrote what a program gave it."""


@pytest.fixture
def labelled(mine: str) -> Archive:
    """An archive of two restore points, of which the first has labels that no writer accepts any more."""
    store = open_store(mine)

    def label(state: State) -> State:
        return replace(state, labels=OLD_LABELS)

    commit(store, open_archive(store).committed, label, Author("label", "", "of an older version"))
    return open_archive(store)


@pytest.mark.parametrize(("name", "number"), [("2", 2), (2, 2), ("1", 1), ("latest", 2), ("before", 1)])
def test_a_number_and_a_word_win_over_an_old_label(labelled: Archive, name: str | int, number: int) -> None:
    assert labelled.find_point(name).number == number


@pytest.mark.parametrize("name", ["all", "007"])
def test_an_old_label_that_could_be_something_else_selects_nothing(labelled: Archive, name: str) -> None:
    with pytest.raises(UsageError, match=f"the label '{name}' of restore point 1 looks like a number or") as refused:
        labelled.find_point(name)
    assert "select 1" in refused.value.hint


def test_a_number_without_a_restore_point_is_not_the_label(labelled: Archive) -> None:
    store = labelled.store

    def label(state: State) -> State:
        return replace(state, labels={"9": 1})

    commit(store, labelled.committed, label, Author("label", "", "of an older version"))
    with pytest.raises(UsageError, match="there is no restore point 9; the label '9' of restore point 1"):
        open_archive(store).find_point("9")


def test_old_labels_that_select_nothing_are_shown_and_can_be_removed(labelled: Archive, kbackup: Kbackup) -> None:
    store = labelled.store
    shown = kbackup("list", store.url).err
    for name in OLD_LABELS:
        assert (f"label {name!r} of restore point 1 selects nothing" in shown) == (name != "before")
    for name in OLD_LABELS:
        remove_label(store, name)
    assert "selects nothing" not in kbackup("list", store.url).err


def test_the_web_page_knows_no_point_by_such_a_label(labelled: Archive) -> None:
    cache = ArchiveCache(labelled.store)
    cache.points()
    assert (cache.has_point("all"), cache.has_point("before")) == (False, True)
    assert cache.snapshot("2").number == 2


@pytest.mark.parametrize("label", ["2", "latest", "all", "a b"])
def test_a_program_gives_no_label_that_could_be_something_else(mine: str, label: str) -> None:
    """Refused before anything is read: the cluster does not exist."""
    config = {"archive": mine, "source": {"bootstrap.servers": "localhost:1"}}
    with pytest.raises(UsageError, match="can't be used"):
        library.backup(config, label=label)
    sources = Sources(kafka={"bootstrap.servers": "localhost:1"})
    with pytest.raises(UsageError, match="can't be used"):
        archive_metadata(Backup(), sources, open_store(mine), Silent(), label)


@pytest.mark.parametrize("text", ["a=b", "a:0", "a/0", "/a/", "a b", "a,b", "a@2"])
def test_a_topic_is_never_taken_for_an_address_or_an_option(text: str) -> None:
    """No topic has a sign that parts an address, a rule or a pattern, so an archive has none with it."""
    found = layout.parse_topic_key(f"topics/{text}/index_partition_0")
    assert found == ((("a", 2), "index_partition_0") if text == "a@2" else None)


def test_addresses_are_cut_at_the_signs_that_no_topic_has() -> None:
    assert parse_range("x-0.1:0:1")[:] == ("x-0.1", 0, 1, 2)
    assert parse_range("0:1:2-3")[:] == ("0", 1, 2, 3)
    assert parse_address("latest") == parse_address("latest/")
    for text in ("a=b:0:1", "x:0:1:0:1", "@2:0:1", "/a/:0:1"):
        with pytest.raises(ValueError, match=re.escape(text)):
            parse_range(text)


def test_a_rule_of_map_regex_is_cut_at_the_last_sign() -> None:
    pattern, replacement = parse_rule("a=(.*)=b-\\1")
    assert (pattern.pattern, replacement) == ("a=(.*)", "b-\\1")


def settings_of(text: str = "", environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    settings = [Setting("restore.map_group", text, SettingOrigin("flag", "--set"))] if text else []
    return load(settings, ConfigFiles(), environ or {}).config.restore.map_group


@pytest.mark.parametrize("option", [("--map-group", "a=b=c"), ("--set", "restore.map_group.a=b=c")])
def test_a_group_with_an_equals_sign_is_not_guessed(root: str, option: tuple[str, str], kbackup: Kbackup) -> None:
    refused = kbackup("restore", "-a", root, "--dry-run", *option, code=2).err
    assert "a=b=c has two meanings" in refused
    assert """--set 'restore.map_group={"a" = "b=c"}'""" in refused


def test_a_group_with_an_equals_sign_is_named_as_toml() -> None:
    assert settings_of('{"a=b" = "c"}') == {"a=b": "c"}
    assert settings_of(environ={"KBACKUP_RESTORE_MAP_GROUP": "a=b,c=d"}) == {"a": "b", "c": "d"}
    with pytest.raises(UsageError, match="map_group"):
        settings_of(environ={"KBACKUP_RESTORE_MAP_GROUP": "a=b=c"})


def test_a_group_between_slashes_is_selected_by_a_pattern_alone() -> None:
    """What stands between slashes is always a pattern, whatever groups there are."""
    groups = ["/orders/", "orders"]
    assert [g for g in groups if Selection.of(["/orders/"], []).matches(g)] == ["orders"]
    assert [g for g in groups if Selection.of([exact_entry("/orders/")], []).matches(g)] == ["/orders/"]


@pytest.mark.parametrize("restore_id", ["a/b", "..", "a@1", "-x", "", "a b", "x" * 101])
def test_texts_that_can_be_no_restore_id(restore_id: str) -> None:
    with pytest.raises(UsageError, match="can't be used"):
        layout.restore_key(restore_id, layout.REPORT)


def test_restores_whose_ids_look_like_parts_of_others_share_no_group() -> None:
    names = [layout.progress_group(each, number) for each in ("a", "a-1", "a.1", "1") for number in (0, 1, 11)]
    assert len(set(names)) == len(names)


def test_flows_whose_aliases_look_like_others_share_nothing() -> None:
    pairs = [("a", "b"), ("a.b", "c"), ("a", "b.c"), ("a-b", "c"), ("a", "b-c"), ("a%2Eb", "c"), ("a/b", "c")]
    assert len({layout.mirror_key(*pair, "status.json") for pair in pairs}) == len(pairs)
    assert len({layout.mirror_group(*pair) for pair in pairs}) == len(pairs)
