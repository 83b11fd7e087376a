"""Check documents: commands parse, configurations load, and names, links and defaults are right."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import click
import msgspec
import pytest
from click.testing import CliRunner

from kbackup.cli import COMMANDS, cli, plain_arguments
from kbackup.cli.common.command_context import FlagValues
from kbackup.cli.common.notify import notifier_for
from kbackup.config import KEYS, VARIABLES, ConfigFiles, load
from kbackup.config.keys import show_value
from kbackup.config.models import Follow
from kbackup.jobs.status.report import Subject
from kbackup.mirror.properties.keys import FLOW_KEYS, OWN_KEYS
from kbackup.mirror.reader import INTERVAL_SECONDS, rhythm_of
from kbackup.store.file import FileStore
from kbackup.store.registry import kind_of
from tests.project.docs.documents import DOCUMENTS, ROOT, Code, blocks, inline, kbackup_lines
from tests.support.archives import make_archive
from tests.support.truth import plain_records

LINES = sorted(set(kbackup_lines()))
GITHUB_ANCHOR = re.compile(r"[^\w\- ]")


def test_the_table_of_findings_has_every_finding_of_the_status() -> None:
    """By subject and level, as `kbackup status --json` has them."""
    in_code: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse((ROOT / "kbackup/jobs/status/findings.py").read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "StatusFinding":
            level, subject = (ast.literal_eval(argument) for argument in node.args[:2])
            in_code.add((subject, level))
    text = (ROOT / "infra/docs/status.md").read_text()
    in_table = set(re.findall(r"^\| `(\w+)` \| (warning|critical) \|", text, re.MULTILINE))
    assert in_table == in_code
    assert {subject for subject, _ in in_code} == set(get_args(Subject))


def test_there_are_lines_of_every_command() -> None:
    assert {line.text.split()[0] for line in LINES} >= set(COMMANDS)


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_documented_command_takes_its_options(line: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is there and takes what it is given."""
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    name, *arguments = plain_arguments(shlex.split(line.text))
    command = cli.get_command(cli.make_context("kbackup", [name, "--help"], resilient_parsing=True), name)
    assert command is not None, f"no command {name}"
    if line.language == "inline" and not arguments:
        return  # it is only named
    state = FlagValues()
    with command.make_context(name, arguments, obj=state, **cli.context_settings) as context:
        if isinstance(command, click.Group):
            part, below, rest = command.resolve_command(context, arguments)
            assert below is not None, f"no command {name} {part}"
            if rest:  # else it is only named
                below.make_context(part, rest, parent=context)
    load(state.settings, ConfigFiles())


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_a_documented_configuration_loads(block: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_PASSWORD", "REGISTRY_PASSWORD", "EXPORTER_PASSWORD", "PAGERDUTY_KEY", "SPARK_SECRET"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("WEBHOOK_URL", "https://hooks.example.com/secret")
    file = tmp_path / "kbackup.toml"
    file.write_text(block.text, encoding="utf-8")
    config = load([], ConfigFiles(config=str(file))).config
    if config.notify.url:
        assert notifier_for(config, "backup", {}) is not None, "URL and template are valid"
        return
    assert config.archive is not None
    assert kind_of(config.archive).section, "it is in a cloud"


def test_programs_and_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets, path.name
        for name in re.findall(r"python -m (scripts[\w.]*\w)", text):
            assert find_spec(name) is not None, f"{path.name}: {name}"


def test_keys_and_variables_that_are_named() -> None:
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    for path in DOCUMENTS:
        for text in inline(path):
            if re.fullmatch(rf"({'|'.join(sections)})\.[a-z_]+", text) and text not in _OTHER_NAMES:
                assert text in KEYS, f"{path.name}: {text}"
            for variable in re.findall(r"KBACKUP_[A-Z_]+[A-Z]", text):
                assert variable in VARIABLES or _is_key(variable), f"{path.name}: {variable}"


_NOT_FOR_USERS = re.compile(r"^## (?:For developers|Develop)\n(?:(?!^## ).*\n?)*", re.MULTILINE)
USERS_PAGES = [path for path in DOCUMENTS if path.parent.name == "docs" or path == ROOT / "README.md"]


@pytest.mark.parametrize("path", USERS_PAGES, ids=lambda path: path.name)
def test_pages_name_what_an_installation_has(path: Path) -> None:
    """No module of a development clone, and no variable that the program does not read."""
    text = _NOT_FOR_USERS.sub("", path.read_text("utf-8"))
    assert re.findall(r"\bscripts\.\w[\w.]*", text) == []
    named = set(re.findall(r"\bKBACKUP_[A-Z_]*[A-Z]\b", text)) - _PARTS_OF_NAMES
    assert {name for name in named if name not in VARIABLES and not _is_key(name)} == set()


_PARTS_OF_NAMES = {"KBACKUP_SOURCE", "KBACKUP_TARGET"}
_OTHER_NAMES = {"spark.authenticate", "spark.jars", "export.json"}
"""Properties of Spark's own, and a file."""


def _is_key(variable: str) -> bool:
    name = variable.removeprefix("KBACKUP_").lower()
    return name.startswith(("source_", "target_")) or name in {key.replace(".", "_") for key in KEYS}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text("utf-8")):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked), target


def _anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {GITHUB_ANCHOR.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_document_can_be_found() -> None:
    """From the README, over links."""
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop().resolve()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8"))
        todo += [path.parent / link for link in links if not link.startswith("https://")]
    assert {p for p in DOCUMENTS if "vectors" not in p.parts} <= seen


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"], obj=FlagValues())
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")


CONTEXT = click.Context(cli, info_name="kbackup")


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(CONTEXT, name)
        assert command is not None
        yield name, command


def _with_option(option: str) -> set[str]:
    return {name for name, command in _commands() if any(option in p.opts for p in _params(command))}


def _params(command: click.Command) -> Iterator[click.Parameter]:
    """The parameters of a command, and those of the commands below it."""
    yield from command.params
    if isinstance(command, click.Group):
        for part in command.list_commands(CONTEXT):
            below = command.get_command(CONTEXT, part)
            assert below is not None, part
            yield from _params(below)


def _told(document: str, sentence: str) -> set[str]:
    """The commands in code between the two halves of a sentence ('…' stands between), in one point of a list."""
    before, after = (re.escape(half).replace(r"\ ", r"\s+") for half in sentence.split("…"))
    (found,) = re.findall(f"{before}((?:(?!\n- ).)*?){after}", (ROOT / document).read_text("utf-8"), re.DOTALL)
    return {text.split()[0] for text in re.findall(r"`([^`]+)`", found)}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("infra/docs/configuration.md", "Keep what … read of an archive's metadata"),
        ("infra/docs/security.md", "The metadata cache of … is a folder"),
        ("infra/docs/requests.md", "keeps objects of 64 KiB and more that … read"),
    ],
)
def test_commands_that_keep_metadata(document: str, sentence: str) -> None:
    assert _told(document, sentence) == _with_option("--cache")


def test_the_document_names_the_commands_that_start_no_spark() -> None:
    """The document names the commands whose modules can't start Spark, and two that need not."""
    places = {name: module.partition(":")[0] for name, (module, _) in COMMANDS.items()}
    modules = {
        name: importlib.import_module(place if "." in place else f"kbackup.cli.{place}")
        for name, place in places.items()
    }
    without = {*COMMANDS} - _with_option("--master") | {"config"}
    single = {name: module for name, module in modules.items() if not hasattr(module, "__path__")}
    assert without & single.keys() == {n for n, m in single.items() if not hasattr(m, "spark_session")}
    told = _told("infra/docs/spark.md", "These commands start no Spark: … `check")
    assert told == without | {"restore", "verify"}


@pytest.mark.parametrize("name", COMMANDS)
def test_tables_of_options_show_defaults(name: str) -> None:
    """Tables of options show the default of each option that has one."""
    document = (ROOT / "infra/docs/commands.md").read_text("utf-8")
    own, _, rest = document.partition(f"\n## kbackup {name}\n")[2].partition("\n## ")
    shared = rest[rest.index("Options of several commands\n") :]
    for option in dict(_commands())[name].params:
        if not isinstance(option, click.Option) or option.is_flag or option.count:
            continue
        if isinstance(option.default, str | int):
            (row,) = _rows_of(option, own) or _rows_of(option, shared)
            assert f"[default {option.default}" in row


def _rows_of(option: click.Option, text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `") and f"`{option.opts[-1]} " in line]


def test_every_command_that_opens_an_archive_has_a_role() -> None:
    """In the table of the policies for a bucket."""
    text = (ROOT / "infra/docs/security.md").read_text("utf-8")
    rows = re.findall(r"^\| \[[\w-]+\.json\]\(\.\./policies/[\w-]+\.json\) \| (.*?) \|", text, re.MULTILINE)
    assert len(rows) == len([*(ROOT / "infra" / "policies").glob("*.json")])
    documented = {code.removeprefix("kbackup ") for row in rows for code in re.findall(r"`([^`]+)`", row)}
    due = set(COMMANDS) - {"config", "completion", "help", "serve-user"}
    for name, command in _commands():
        if isinstance(command, click.Group):
            due = due - {name} | {f"{name} {part}" for part in command.list_commands(CONTEXT)}
    assert documented - {"--state"} == due - {"key generate", "migrate status"}


def test_every_key_is_on_the_page_with_its_default() -> None:
    page = (ROOT / "infra/docs/mirror-properties.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z.-]+)` \| (?:`([^`]*)`)? ?\|", page, re.MULTILINE))
    keys = FLOW_KEYS | OWN_KEYS
    assert {name: rows.get(name) for name in keys} == {name: key.default for name, key in keys.items()}


def test_a_mirrors_own_defaults_are_in_the_configuration() -> None:
    text = (ROOT / "infra/docs/configuration.md").read_text("utf-8")
    section = text.partition("\n## Defaults of a mirror\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (.*) \|$", section, re.MULTILINE))
    follow = {path: KEYS[path].default for path in KEYS if path.startswith("follow.")}
    own = {path: value for path, value in values_of(rhythm_of(Follow(), follow)).items() if value != follow[path]}
    assert rows.keys() == own.keys()
    assert rows["follow.interval_seconds"] == f"`{show_value(KEYS['follow.interval_seconds'], INTERVAL_SECONDS)}`"
    assert rows["follow.max_age_seconds"] == "what `follow.interval_seconds` is"
    assert rows["follow.small_bytes"] == "`0`, unless `follow.max_age_seconds` is set"
    assert own["follow.small_bytes"] == 0
    given = Follow(interval_seconds=7, max_age_seconds=9)
    others = follow.keys() - {"follow.interval_seconds", "follow.max_age_seconds"}
    assert rhythm_of(given, others) == given
    assert rhythm_of(given, others | {"follow.max_age_seconds"}).max_age_seconds == 7


def values_of(follow: Follow) -> dict[str, object]:
    return {f"follow.{name}": value for name, value in msgspec.structs.asdict(follow).items()}


def test_the_line_makes_plain_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    make_archive(store)
    keys = [entry.key for entry in store.list("topics/") if "_records" in entry.key]
    plain = {key.removesuffix(".zst"): plain_records(store, key) for key in keys}
    assert plain.keys() != {*keys}
    (line,) = re.findall(r"`(find topics .*?)`", (ROOT / "infra/docs/restore.md").read_text("utf-8"))
    subprocess.run(["sh", "-ec", line], cwd=tmp_path, check=True, capture_output=True)
    there = [entry.key for entry in store.list("topics/") if "_records" in entry.key]
    assert {key: store.get(key) for key in there} == plain
