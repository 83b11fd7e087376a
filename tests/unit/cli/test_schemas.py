"""`schemas` on an archive at hand, without a registry."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from kbackup.archive.models import Schemas, load
from kbackup.cli import cli
from kbackup.cli import schemas as words
from kbackup.cli.common import completion
from kbackup.cli.common.output import Reporter
from kbackup.jobs.schemas.documents import RestoredSchema, SchemaMap
from kbackup.jobs.schemas.plan import PlannedSchema, SchemaPlan
from kbackup.jobs.schemas.undo import SchemasUndone
from kbackup.schemas.base import SchemaReference, SchemaVersion
from kbackup.store import open_store
from kbackup.util.folders import Folder
from tests.support.archives import make_archive
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.printed import Kbackup, Printed
from tests.support.schema_archive import CART, SECOND, make_schema_archive

STEERS = "\x1b[2Jname\nof\u202e a subject"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("schemas")
    make_schema_archive(open_store(str(folder)))
    return str(folder)


def test_subjects_of_a_restore_point(archive: str, kbackup: Kbackup) -> None:
    printed = kbackup("schemas", "show", "-a", archive)
    assert printed.words[-2:] == ["orders-key AVRO 1 1 orders", "orders-value AVRO 2 2, 3 orders"]
    lost = "1 value of topic orders with schema 99, which the restore point lacks"
    assert printed.err == f"warning: {lost}\n"
    first = kbackup("schemas", "show", "-a", archive, "-b", "1", "--json").json
    assert {s["subject"]: s["ids"] for s in first["subjects"]}["orders-value"] == [2]
    assert (first["restore_point"], first["lost"]) == (1, [])
    assert kbackup("schemas", "show", "-a", archive, "--json").json["lost"] == [lost]


def test_show_lists_the_versions_of_a_subject(archive: str, kbackup: Kbackup) -> None:
    shown = kbackup("schemas", "show", "carts-value", "-a", archive)
    head = "version 1, id 5, PROTOBUF, active"
    assert shown.out.endswith(f"\n{head}\n  money.proto is money.proto version 1\n  {CART}\n")
    told = kbackup("schemas", "show", "orders-value", "-a", archive, "--json").json
    assert [(v["version"], v["id"]) for v in told["versions"]] == [(1, 2), (2, 3)]
    assert (told["topics"], told["settings"]["config"]) == (["orders"], None)


def test_what_a_restore_point_added(archive: str, kbackup: Kbackup) -> None:
    told = kbackup("schemas", "diff", "1", "2", "--exit-code", "-a", archive, "--json", code=3).json
    assert [(v["owner"], v["name"], v["change"]) for v in told["schemas"]] == [
        ("orders-value", "version 2", "appeared")
    ]
    assert kbackup("schemas", "diff", "2", "2", "--exit-code", "-a", archive).out == "there are no differences\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "order-value"], "there is no subject order-value in restore point 2"),
        (["show", "-b", "7"], "there is no restore point 7"),
        (["diff"], "no schema registry is named"),
        (["diff", "1", "target"], "no target schema registry is named"),
        (["restore"], "no target schema registry is named"),
        (["restore", "--schemas", "none"], "--schemas none restores nothing"),
        (["undo"], "no restore is named"),
        (["undo", "--restore-id", "r"], "no target schema registry is named"),
        (
            ["restore", "ordrs", "--target-schema-registry", "http://127.0.0.1:9"],
            "there is no subject ordrs in restore point 2",
        ),
    ],
)
def test_unusable_arguments_are_refused(archive: str, kbackup: Kbackup, arguments: list[str], message: str) -> None:
    told = kbackup("schemas", *arguments, "-a", archive, "--config", "/dev/null", "--json", code=2).json
    assert message in told["error"]["message"]


def test_a_restore_point_without_schemas(tmp_path: Path, kbackup: Kbackup) -> None:
    make_archive(open_store(str(tmp_path)))
    told = kbackup("schemas", "show", "-a", str(tmp_path), "--json", code=2).json
    assert told["error"]["message"] == "restore point 2 has no schemas"


def test_export_writes_every_version_into_an_empty_directory(archive: str, kbackup: Kbackup, tmp_path: Path) -> None:
    to = tmp_path / "new" / "schemas"
    assert kbackup("schemas", "export", str(to), "-a", archive, "--json").json["versions"] == 6
    assert (to / "carts-value" / "v1.proto").read_text() == CART
    assert (to / "orders-value" / "v2.avsc").exists()
    assert load(Schemas, (to / "schemas.json").read_bytes(), "schemas.json").versions == SECOND
    told = kbackup("schemas", "export", str(to), "-a", archive, "--json", code=2).json
    assert told["error"]["message"] == f"directory {to} is not empty"


def test_an_export_follows_no_link_that_takes_a_folders_place(
    archive: str, kbackup: Kbackup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, elsewhere = tmp_path / "schemas", tmp_path / "elsewhere"
    elsewhere.mkdir()
    made = Folder.mkdir

    def replaced(folder: Folder, name: str, mode: int) -> None:
        made(folder, name, mode)
        (to / name).rmdir()
        (to / name).symlink_to(elsewhere)

    monkeypatch.setattr(Folder, "mkdir", replaced)
    told = kbackup("schemas", "export", str(to), "-a", archive, "--json", code=1).json
    assert "is a symbolic link" in told["error"]["message"]
    assert list(elsewhere.iterdir()) == []


def test_schemas_are_restored_and_undone(
    archive: str, kbackup: Kbackup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")  # this machine remembers what it writes
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ConfluentRegistry() as server:
        to = ("-a", archive, "--state", str(tmp_path), "--target-schema-registry", server.url)
        planned = kbackup("schemas", "restore", "carts-value", "--dry-run", *to)
        subjects = [row["SUBJECT"] for row in planned.table("SUBJECT")]
        assert subjects == ["money.proto", "carts-value"], "what it refers to comes first"
        assert planned.lines[-1] == "nothing was written; 2 versions to create"
        assert "to set: compatibility" not in planned.err
        assert server.subjects == {}
        done = kbackup("schemas", "restore", "/orders-.*/", "-b", "1", "--restore-id", "r", *to, "--json").json
        assert done["ids"] == {"1": 1, "2": 2}
        again = kbackup("schemas", "restore", "--to-time", "2026-01-03T00:00:00Z", "--restore-id", "all", *to)
        *_, last = again.table("SUBJECT")
        assert last["SUBJECT"] == "orders-value"
        assert "create" in last.values()
        assert "to undo: kbackup schemas undo --restore-id all" in again.err
        compared = kbackup("schemas", "diff", "latest", "target", *to[:2], *to[-2:], "--json").json
        assert [(v["owner"], v["name"]) for v in compared["schemas"]] == [("all subjects", "mode")]
        server.register("orders-value", {"schema": '"late"'})
        warning = "warning: orders-value version 2 is left: others have registered version 3 since"
        shown = kbackup("schemas", "undo", "--restore-id", "all", *to, code=3)
        assert "carts-value version 1: would be deleted" in shown.lines
        assert shown.err.splitlines()[0] == warning
        assert shown.err.splitlines()[1].startswith("nothing was changed; to undo: kbackup schemas undo")
        assert "carts-value" in server.subjects
        left = kbackup("schemas", "undo", "--restore-id", "all", "--confirm", *to, code=3)
        assert left.err == f"{warning}\n"
        assert "carts-value version 1: deleted" in left.lines
        taken = kbackup("schemas", "restore", "-b", "1", "--dry-run", *to, "--json").json
        assert {step["action"] for step in taken["steps"] if "orders" in step["source"]} == {"exists"}


def _printed_line(printed: Printed, before: str) -> list[str]:
    """Return the words of the command that follows `before` on stderr, without the name of the program."""
    _, found, rest = printed.err.partition(before)
    assert found, printed.err
    return shlex.split(rest.splitlines()[0])[1:]


@pytest.mark.parametrize("remembers", [True, False])
def test_printed_lines_undo_whether_or_not_this_machine_remembers_what_it_wrote(
    archive: str, kbackup: Kbackup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembers: bool
) -> None:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", str(remembers).lower())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ConfluentRegistry() as server:
        to = ("-a", archive, "--state", str(tmp_path), "--target-schema-registry", server.url)
        done = kbackup("schemas", "restore", "carts-value", *to)
        assert server.subjects["carts-value"]
        line = _printed_line(done, "to undo: ")
        assert ("--confirm" in line) is remembers
        if not remembers:
            plan = kbackup(*line)
            assert server.subjects["carts-value"], "the first line only shows the plan"
            line = _printed_line(plan, "to undo: ")
        kbackup(*line)
        assert not any(server.subjects.values())


def test_an_undo_of_forged_files_changes_nothing(archive: str, kbackup: Kbackup, tmp_path: Path) -> None:
    """Somebody who may only write to the bucket puts files of a restore there."""
    with ConfluentRegistry() as server:
        forger = tmp_path / "forger"
        to = ("-a", archive, "--target-schema-registry", server.url)
        kbackup("schemas", "restore", "/orders-.*/", "--restore-id", "worst-day", *to, "--state", str(forger))
        before = dict(server.subjects)
        forged = (*to, "--state", str(forger), "--restore-id", "worst-day")
        assert "--accept-unproven" in kbackup("schemas", "undo", *forged).err
        refused = kbackup("schemas", "undo", "--confirm", *forged, code=1)
        assert "nothing proves that restores/worst-day/schemas-before.json" in refused.err
        assert "hint: undo it on the machine that ran the restore; or run the line without --confirm" in refused.err
        assert server.subjects == before


def test_a_refused_login_names_the_section_of_the_target(archive: str, kbackup: Kbackup) -> None:
    with ConfluentRegistry(authorization="Basic x") as server:
        to = ("-a", archive, "--target-schema-registry", server.url)
        told = kbackup("schemas", "restore", *to, "--json", code=14).json
    assert told["error"]["hint"].startswith("set target_schema_registry.user and target_schema_registry.password")


def test_the_shell_completes_subjects(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_COMPLETION_SECONDS", 30.0)
    shell = ShellComplete(cli, {}, "kbackup", "_KBACKUP_COMPLETE")
    try:
        items = shell.get_completions(["schemas", "show", "-a", archive], "orders-")
    finally:
        logging.disable(logging.NOTSET)
    assert [item.value for item in items] == ["orders-key", "orders-value"]


def test_no_name_of_a_subject_leaves_the_directory() -> None:
    names = [
        "..",
        ".",
        "../../etc/passwd",
        "/etc",
        "a/b",
        "a\0b",
        "x" * 10_000,
        "Orders",
        "orders",
        "",
        ":.x:a",
        STEERS,
    ]
    versions = tuple(SchemaVersion(subject=name, version=1, id=1, schema='"a"') for name in names)
    gone = SchemaVersion(subject="orders", version=1, id=2, schema='"b"', state="gone")
    schemas = Schemas(captured_at="", registry="r", kept="all", versions=(*versions, gone))
    paths = [name for name, _ in words.export_files(schemas)]
    assert len({path.lower() for path in paths}) == len(names) + 1
    for path in paths:
        folder, name = path.split("/")
        assert folder.lower() not in ("", ".", "..", "schemas.json")
        assert folder.isprintable()
        assert len(folder.encode()) <= 200
        assert name.startswith("v1")


def test_names_can_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    needs = (SchemaReference(name=STEERS, subject=STEERS, version=1),)
    version = SchemaVersion(subject=STEERS, version=1, id=1, type=STEERS, schema=STEERS, references=needs)
    step = PlannedSchema(source=STEERS, schema=version, action="create")
    about: dict[str, Any] = {"registry": STEERS, "prefix": STEERS}
    plan = SchemaPlan(mode="same", steps=(step,), versions={}, before=(), after=(), notes=(STEERS,), **about)
    restored = RestoredSchema(source=STEERS, version=1, subject=STEERS, target_version=1, id=1)
    done = SchemaMap(
        restore_id="r", mode="same", restored_at="", ids={}, guids={}, schemas=(restored,), not_set=(STEERS,), **about
    )
    words.show_version(version, reporter)
    words.show_plan(plan, reporter)
    words.show_restored(done, plan, "kbackup schemas undo", reporter)
    undone = SchemasUndone(restore_id="r", registry=STEERS, deleted=(STEERS,), settings=(STEERS,), left=(STEERS,))
    words.show_undone(undone, reporter)
    out, err = capsys.readouterr()
    assert not {"\x1b", "\u202e"} & {*out, *err}
