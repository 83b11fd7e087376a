"""`init`: answers from options and from a terminal, and the files that it writes, all of them or none."""

from __future__ import annotations

import io
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kbackup import cli
from kbackup.cli.init.draft import ConfigDraft, toml_text, write_files
from kbackup.cli.init.schedule import Schedule, chart_values, parse_at, schedule_files, service, timer
from kbackup.config import ConfigFiles, Setting, SettingOrigin, load
from kbackup.errors import UnreachableError, UsageError
from kbackup.jobs import check
from kbackup.jobs.check import Configured, Steps
from tests.support.printed import Kbackup, Terminal

NEITHER = ("", "")
"""The answers to the questions about a registry and a webhook: there is none."""
FLAGS = ("init", "--yes", "--bootstrap-server", "h:9092", "--archive", "s3://b/p", "--schedule", "none")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The tests' own settings would be answers.
    monkeypatch.delenv("KBACKUP_METADATA_CACHE", raising=False)


def written() -> dict[str, Any]:
    return tomllib.loads(Path("kbackup.toml").read_text())


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The archives and topics that were tried; a bucket named wrong can't be reached."""
    addresses: list[str] = []

    def attempt(steps: Steps, configured: Configured) -> None:
        with steps.trying("a trial") as step:
            config = configured()
            addresses.append(f"{config.archive} {','.join(config.backup.topics)}".rstrip())
            if config.archive == "s3://wrong":
                raise UnreachableError("no bucket wrong", "make it")
            step.detail = "works"

    monkeypatch.setattr(check, "speaks_tls", lambda servers: {"tls:9093": True, "plain:9092": False}.get(servers))
    for name in ("try_cluster", "try_archive", "try_selection"):
        monkeypatch.setattr(check, name, attempt)
    return addresses


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `init` on a terminal with answers, one a line."""

    def run(*answers: str, arguments: tuple[str, ...] = ()) -> int:
        keyboard = Terminal("".join(f"{answer}\n" for answer in answers))
        monkeypatch.setattr(sys, "stdin", keyboard)
        code = cli.main(["init", *arguments])
        assert keyboard.read() == "", "answers that nothing asked for"
        return code

    return run


def test_options_are_the_answers(tried: list[str], kbackup: Kbackup) -> None:
    more = ("-t", "orders", "-t", "/x/", "--set", "source.sasl.password=${file:/run/secret}", "--no-check")
    report = kbackup(*FLAGS, *more, "--json").json
    assert written() == {
        "archive": "s3://b/p",
        "source": {"bootstrap": {"servers": "h:9092"}, "sasl": {"password": "${file:/run/secret}"}},
        "backup": {"topics": ["orders", "/x/"]},
    }
    assert report["files"] == [report["config"]] == [str(Path("kbackup.toml").absolute())]
    assert report["next"] == ["kbackup check --spark", "kbackup backup"]
    assert tried == []


def test_failed_trials_write_nothing(tried: list[str], kbackup: Kbackup) -> None:
    printed = kbackup(*FLAGS, "--archive", "s3://wrong", code=14)
    assert tried == ["s3://wrong", "s3://wrong"], "the archive, and the selection with the cluster"
    assert "FAILED   a trial: no bucket wrong" in printed.out
    assert printed.err == "nothing was written\n"
    assert list(Path().iterdir()) == []


def test_a_file_is_overwritten_only_when_told(tried: list[str], typed: Callable[..., int], kbackup: Kbackup) -> None:
    Path("kbackup.toml").write_text("mine")
    err = kbackup(*FLAGS, code=1).err
    assert "kbackup.toml exists; nothing was written\nhint: give --overwrite" in err
    assert typed("n") == 1
    assert Path("kbackup.toml").read_text() == "mine"
    assert "kbackup backup\n" in kbackup(*FLAGS, "--overwrite").out
    assert written()["archive"] == "s3://b/p"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init", "--yes", "-a", "s3://b"), "source.bootstrap.servers is not set"),
        (("init", "--yes", "--bootstrap-server", "h:1"), "archive is not set"),
        ((*FLAGS, "--set", "source.sasl.password=x"), "source.sasl.password is a secret"),
        ((*FLAGS, "--run-at", "25:00"), "25:00 is not a time of the day"),
        (("init",), "stdin is not a terminal"),
    ],
)
def test_init_refuses_what_it_can_not_write(
    arguments: tuple[str, ...], message: str, tried: list[str], kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert message in kbackup(*arguments, code=2).err
    assert list(Path().iterdir()) == []


def test_an_answer_that_fails_is_corrected(tried: list[str], typed: Callable[..., int]) -> None:
    Path("ca.pem").touch()
    cluster = ("h:9092", "SSL", "nowhere.pem", "ca.pem")
    archive = ("s3://wrong", "http://minio:9000", "", "", "correct", "s3://right", "", "eu-1", "")
    selection = ("/(/", "orders, /x/", "", "", "")
    assert typed(*cluster, *archive, *selection, *NEITHER, "none") == 0
    assert tried == ["None", "s3://wrong", "s3://right", "s3://right orders,/x/"]
    assert written() == {
        "archive": "s3://right",
        "source": {
            "bootstrap": {"servers": "h:9092"},
            "security": {"protocol": "SSL"},
            "ssl": {"ca": {"location": "ca.pem"}},
        },
        "s3": {"endpoint_url": "http://minio:9000", "region": "eu-1"},
        "backup": {"topics": ["orders", "/x/"]},
    }


@pytest.mark.parametrize(
    ("servers", "wrong", "protocol"), [("tls:9093", "SASL_PLAINTEXT", "SSL"), ("plain:9092", "SSL", "PLAINTEXT")]
)
def test_protocols_are_those_that_the_brokers_speak(
    servers: str, wrong: str, protocol: str, tried: list[str], typed: Callable[..., int]
) -> None:
    ca = ("",) if protocol == "SSL" else ()
    assert typed(servers, wrong, "", *ca, "/archive", "", "", "", "", *NEITHER, "none") == 0
    assert written()["source"]["security"]["protocol"] == protocol


def test_oauthbearer_is_asked_for(tried: list[str], typed: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_CLIENT_SECRET", "not-written")
    oauth = ("oauthbearer", "https://idp/token", "backup", "", "")
    assert typed("tls:9093", "SASL_SSL", "", *oauth, "/archive", "", "", "", "", *NEITHER, "none") == 0
    assert written()["source"]["sasl"] == {
        "mechanism": "OAUTHBEARER",
        "oauthbearer": {
            "method": "oidc",
            "token": {"endpoint": {"url": "https://idp/token"}},
            "client": {"id": "backup", "secret": "${env:KAFKA_CLIENT_SECRET}"},
        },
    }


def test_answers_that_fail_may_be_kept(tried: list[str], typed: Callable[..., int]) -> None:
    answers = ("h:1", "", "s3://wrong", "", "", "", "keep", "", "", "", "", "keep", *NEITHER, "none")
    assert typed(*answers) == 14
    assert written()["archive"] == "s3://wrong"


def test_options_are_the_first_answers(tried: list[str], typed: Callable[..., int]) -> None:
    arguments = (*FLAGS[2:6], "-t", "orders", "--schedule", "kubernetes", "--image", "reg/kb", "--no-check")
    assert typed("", "", "", "", "", "", "-", "", "", "", *NEITHER, "", "04:00", "", arguments=arguments) == 0
    files = sorted(path.name for path in Path().iterdir())
    assert files == ["kbackup-secret.env", "kbackup-values.yaml", "kbackup.toml"]
    assert 'schedule: "0 4 * * *"' in Path("kbackup-values.yaml").read_text()
    assert "orders" not in Path("kbackup.toml").read_text(), "'-' removes an answer"


@pytest.mark.parametrize("answers", [(), ("h:1", ""), ("h:1", "", "s3://b", "", "", "", "", "", "", "")])
def test_an_end_of_input_leaves_nothing(answers: tuple[str, ...], tried: list[str], typed: Callable[..., int]) -> None:
    assert typed(*answers) == 130
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("tried")
def test_paths_in_printed_commands_are_quoted_and_hold_no_controls(
    tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my $(backups)"
    folder.mkdir()
    config = ("--config", str(folder / "kbackup.toml"))
    assert f"--config '{folder}/kbackup.toml'" in kbackup(*FLAGS, *config).out
    variable = ("--set", "source.sasl.password=${env:KAFKA_PASSWORD}", "--schedule", "systemd", "--overwrite")
    monkeypatch.setenv("KAFKA_PASSWORD", "x")
    out = kbackup(*FLAGS, *variable, *config, "--no-check").out
    assert f"write the value of KAFKA_PASSWORD into '{folder}/kbackup.env'" in out
    assert f"sudo systemctl link '{folder}/kbackup.service'" in out
    assert f"set -a; . '{folder}/kbackup.env'; set +a" in out
    for sign in ("\n", "\x1b"):
        err = kbackup(*FLAGS, "--config", f"{tmp_path}/a{sign}User=root.toml", code=2).err
        assert "choose a path without control characters" in err


# The files of `init`: they hold what was answered, and all of them or none are written.


CHART = Path(__file__).parents[3] / "infra" / "helm" / "kbackup"

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
    assert (loaded.source["sasl.password"], draft.references()) == ("s", {"KAFKA_PASSWORD": True})


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
    unit = service(Path("/etc/my kbackup/100%.toml"), ["/opt/kb/kbackup"])
    assert 'ExecStart=/opt/kb/kbackup backup --wait --quiet --json=line --config "/etc/my kbackup/100%%.toml"\n' in unit
    assert "WorkingDirectory=/etc/my kbackup/\n" in unit
    assert "EnvironmentFile=-/etc/my kbackup/kbackup.env\n" in unit
    assert f"User={pwd.getpwuid(os.geteuid()).pw_name}\n" in unit, "systemd sets HOME of units with a user"


def test_a_unit_means_the_paths_that_it_names() -> None:
    """Specifiers, globs, variables, and ends of lines that systemd takes for something else."""
    unit = service(Path('/100%h [x]* "$a"\\/k.toml'), ["/o $b/kb"])
    for line in (
        'WorkingDirectory=/100%%h [x]* "$a"\\/',
        'EnvironmentFile=-/100%%h \\[x]\\* "$a"\\\\/kbackup.env',
        r'ExecStart="/o $b/kb" backup --wait --quiet --json=line --config "/100%%h [x]* \"$$a\"\\/k.toml"',
    ):
        assert line in unit.splitlines(), line


@pytest.mark.parametrize("sign", ["\n", "\x1b", "\u202e", "\udcff"])
def test_paths_that_would_add_lines_to_a_unit_are_refused(sign: str) -> None:
    path = f"/a{sign}User=root"
    for config, program in ((path, "/kb"), ("/a", path)):
        with pytest.raises(UsageError, match="can't be used; choose a path without control") as raised:
            service(Path(config) / "k.toml", [program])
        assert str(raised.value).isprintable()


def test_a_timer_has_its_time() -> None:
    assert "OnCalendar=*-*-* 03:05:00\n" in timer(parse_at("3:05"))
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
    link = Path.hardlink_to

    def second_fails(path: Path, target: Path) -> None:
        link(path, target)
        if path.name == "b":
            raise raised

    monkeypatch.setattr(Path, "hardlink_to", second_fails)
    with pytest.raises((KeyboardInterrupt, UsageError)):
        write_files({tmp_path / "a": "1", tmp_path / "b": "2"}, ())
    assert list(tmp_path.iterdir()) == []
