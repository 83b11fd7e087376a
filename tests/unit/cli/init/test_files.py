"""The files of `init`: they hold what was answered, and all of them or none are written."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kbackup.cli.init import command, schedule
from kbackup.cli.init.command import write_files
from kbackup.cli.init.questions import ConfigDraft, toml_text
from kbackup.cli.init.schedule import Schedule, chart_values, parse_at, schedule_files, service
from kbackup.config import ConfigFiles, Setting, SettingOrigin, load
from kbackup.errors import UsageError

CHART = Path(__file__).parents[4] / "infra" / "helm" / "kbackup"

text = st.text(st.characters(exclude_categories=["Cs"]))


@given(text, st.lists(text, max_size=3), text)
def test_toml_holds_what_is_given(archive: str, topics: list[str], password: str) -> None:
    settings = {"archive": archive, "source.sasl.password": password, "backup.topics": topics}
    assert tomllib.loads(toml_text({**settings, "restore.map.or ders": "x"})) == {
        "archive": archive,
        "source": {"sasl": {"password": password}},
        "backup": {"topics": topics},
        "restore": {"map.or ders": "x"},
    }


def test_the_file_loads_as_the_draft(tmp_path: Path) -> None:
    draft = ConfigDraft.of([Setting("source.bootstrap.servers", "h:9092", SettingOrigin("flag"))])
    draft.environ = {"KAFKA_PASSWORD": "s"}
    for path, answer in (
        ("archive", "s3://b/p"),
        ("source.security.protocol", "SASL_SSL"),
        ("source.sasl.mechanism", "PLAIN"),
        ("source.sasl.username", "backup"),
        ("source.sasl.password", "${env:KAFKA_PASSWORD}"),
        ("backup.topics", "orders, /a{1,2}/"),
    ):
        draft.put(path, answer)
    file = tmp_path / "kbackup.toml"
    file.write_text(toml_text(draft.settings))
    loaded = load([], ConfigFiles(config=str(file)), {"KAFKA_PASSWORD": "s"}).config
    assert loaded == draft.config()
    assert loaded.backup.topics == ("orders", "/a{1,2}/")
    assert (loaded.source["sasl.password"], draft.variables()) == ("s", ["KAFKA_PASSWORD"])


def test_a_draft_takes_no_secret_and_no_invalid_value() -> None:
    with pytest.raises(UsageError, match="is a secret"):
        ConfigDraft.of([Setting("source.sasl.password", "s3cret", SettingOrigin("flag"))])
    with pytest.raises(UsageError, match="no regular expression"):
        ConfigDraft().put("backup.topics", "/(/")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("folder", ["plain", "with blank", "100%h $x", "[a]*?", "ends\\\\", "blank ", "q\"'"])
def test_systemd_accepts_the_units(folder: str, tmp_path: Path) -> None:
    config = tmp_path / folder / "kbackup.toml"
    config.parent.mkdir()
    texts = schedule_files(Schedule("systemd", (3, 5)), config, "")
    for path, content in texts.items():
        path.write_text(content)
    done = subprocess.run(["systemd-analyze", "verify", *map(str, texts)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_service_runs_one_backup_of_the_file() -> None:
    unit = service(Path("/etc/my kbackup/100%.toml"), ["/opt/kb/kbackup"], {"JAVA_HOME": "/opt/jdk"})
    assert 'ExecStart=/opt/kb/kbackup backup --wait --quiet --json=line --config "/etc/my kbackup/100%%.toml"\n' in unit
    assert "WorkingDirectory=/etc/my kbackup/\n" in unit
    assert "EnvironmentFile=-/etc/my kbackup/kbackup.env\n" in unit
    assert "Environment=JAVA_HOME=/opt/jdk\n" in unit


def test_a_unit_means_the_paths_that_it_names() -> None:
    """Specifiers, globs, variables, and ends of lines that systemd takes for something else."""
    unit = service(Path('/100%h [x]* "$a"\\/k.toml'), ["/o $b/kb"], {"JAVA_HOME": '/j $c %d "e\\'})
    for line in (
        'WorkingDirectory=/100%%h [x]* "$a"\\/',
        'EnvironmentFile=-/100%%h \\[x]\\* "$a"\\\\/kbackup.env',
        r'Environment="JAVA_HOME=/j $c %%d \"e\\"',
        r'ExecStart="/o $b/kb" backup --wait --quiet --json=line --config "/100%%h [x]* \"$$a\"\\/k.toml"',
    ):
        assert line in unit.splitlines(), line


@pytest.mark.parametrize("sign", ["\n", "\x1b", "\u202e", "\udcff"])
def test_paths_that_would_add_lines_to_a_unit_are_refused(sign: str) -> None:
    path = f"/a{sign}User=root"
    for config, program, java in ((path, "/kb", ""), ("/a", path, ""), ("/a", "/kb", path)):
        with pytest.raises(UsageError, match="can't be used; choose a path without control") as raised:
            service(Path(config) / "k.toml", [program], {"JAVA_HOME": java})
        assert str(raised.value).isprintable()


def test_a_timer_has_its_time() -> None:
    assert "OnCalendar=*-*-* 03:05:00\n" in schedule.timer(parse_at("3:05"))
    for wrong in ("24:00", "3", "3:5", "03:60"):
        with pytest.raises(UsageError, match="not a time of the day"):
            parse_at(wrong)


def test_values_of_the_chart_hold_the_configuration() -> None:
    toml = toml_text({"archive": "s3://b", "source.bootstrap.servers": 'h:1,"x"'})
    values = yaml.safe_load(chart_values(Schedule("kubernetes", (14, 7), "reg/kbackup"), toml))
    jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text("utf-8")))
    assert values["config"] == toml
    assert values["image"] == {"repository": "reg/kbackup"}
    assert values["nightly"] == {"enabled": True, "schedule": "7 14 * * *", "existingSecret": "kbackup-backup"}


def test_files_belong_to_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_files({tmp_path / "a": "1\n", tmp_path / "b": "2\n"}, ())
    finally:
        os.umask(before)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "1\n", "b": "2\n"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_file_that_appeared_meanwhile_stays(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    with pytest.raises(UsageError, match="b: file exists"):
        write_files({tmp_path / "a": "1", tmp_path / "b": "2"}, ())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "mine"}
    write_files({tmp_path / "a": "1", tmp_path / "b": "2"}, {tmp_path / "b"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "1", "b": "2"}


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), OSError(28, "No space left on device", "b")])
def test_an_interrupt_leaves_no_file(raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = command._publish

    def second_fails(draft: Path, path: Path, made: list[Path]) -> None:
        publish(draft, path, made)
        if path.name == "b":
            raise raised

    monkeypatch.setattr(command, "_publish", second_fails)
    with pytest.raises((KeyboardInterrupt, UsageError)):
        write_files({tmp_path / "a": "1", tmp_path / "b": "2"}, ())
    assert list(tmp_path.iterdir()) == []
