"""`init`: the variables that a backup uses, the file that gives them to a service, and the check with them alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.cli.init.draft import ConfigDraft
from kbackup.cli.init.environment import Environment
from kbackup.cli.init.environment_file import assignment, completed, values_of
from kbackup.cli.init.notifications import try_webhook
from kbackup.cli.init.proof import check_clean
from kbackup.cli.init.schedule import Schedule, environment_text, java_home, unit_environment, written_values
from kbackup.cli.init.variables import Variable, files_of_this_machine, used_variables
from kbackup.config import Setting, SettingOrigin
from kbackup.errors import UsageError
from kbackup.jobs.check import CheckStep, Steps
from tests.support.local_http import Quiet, serving
from tests.support.printed import Kbackup

SYSTEMD = Schedule("systemd", (2, 30))
KUBERNETES = Schedule("kubernetes", (2, 30))


def draft_of(environ: Mapping[str, str], **settings: str) -> ConfigDraft:
    """Return a draft with these variables; `archive` and other keys, with "__" for a dot."""
    flags = [Setting(name.replace("__", "."), value, SettingOrigin("flag")) for name, value in settings.items()]
    return ConfigDraft.of(flags, environ)


def secrets_of(variables: list[Variable]) -> dict[str, bool]:
    return {variable.name: variable.is_secret for variable in variables}


# The text of the file.


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")))
def test_a_value_comes_back_from_its_line(value: str) -> None:
    assert values_of(assignment("A", value) + "B=1\n") == {"A": value, "B": "1"}


@pytest.mark.parametrize(
    "value", ["plain", "a b", " edges ", 'q"q', "q'q", "b\\s", "$HOME `x`", "#no", "two\nlines", ""]
)
def test_a_shell_reads_the_same_value(value: str, tmp_path: Path) -> None:
    file = tmp_path / "kbackup.env"
    file.write_text(assignment("A", value))
    shell = subprocess.run(
        ["/bin/sh", "-c", '. "$0"; printf "%s" "$A"', str(file)], capture_output=True, text=True, check=True
    )
    assert shell.stdout == value


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1\n  B = 2  \n", {"A": "1", "B": "2"}),
        ("# A=1\n;B=2\nC=3", {"C": "3"}),
        ("A='x y'z\nB=\"x\" 'y' z\n", {"A": "x yz", "B": "xyz"}),
        ('A=it\'s "so"\n', {"A": 'it\'s "so"'}),
        ('A="\\$x \\n"\n', {"A": "$x \\n"}),
        ("A=one\\\ntwo\nB=b\\ \n", {"A": "onetwo", "B": "b "}),
        ("A='two\nlines'\nB=1", {"A": "two\nlines", "B": "1"}),
        ("no assignment\nexport A=1\n1A=x\nB=1\n", {"B": "1"}),
        ("A=1\nA=2\nC=\n", {"A": "2", "C": ""}),
        ("A=x # no comment\n", {"A": "x # no comment"}),
    ],
)
def test_a_file_is_read_by_the_rules_of_systemd(text: str, values: dict[str, str]) -> None:
    assert values_of(text) == values


def test_a_file_that_exists_is_completed_and_keeps_everything_else() -> None:
    present = "# by hand\nOTHER='a b'\nPASSWORD=old\nEMPTY=\n"
    text = completed(present, {"PASSWORD": None, "EMPTY": None, "OTHER": "c", "NEW": None})
    assert text == "# by hand\nPASSWORD=old\nEMPTY=\nOTHER=c\nNEW=\n"
    assert completed(text, {"OTHER": "c", "NEW": None}) == text


def test_kubectl_gets_values_as_they_are() -> None:
    values = {"A": 'a "b" $c', "PEM": "two\nlines", "B": None}
    text = environment_text(KUBERNETES, "", values)
    assert text.splitlines()[1:] == ['A=a "b" $c', "PEM=", "B="]
    assert written_values(KUBERNETES, text) == {"A": 'a "b" $c', "PEM": "", "B": ""}


# The variables.


def test_variables_are_those_that_answers_and_store_use() -> None:
    shell = {
        "KAFKA_PASSWORD": "p",
        "ARCHIVE_KEY": "k",
        "BROKERS": "h:1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_PAGER": "less",
        "HTTPS_PROXY": "http://user:pw@proxy:3128",
        "NO_PROXY": "localhost",
        "EDITOR": "vi",
    }
    draft = draft_of(
        shell,
        archive="s3://b/p",
        source__bootstrap__servers="${env:BROKERS}",
        source__sasl__password="${env:KAFKA_PASSWORD}",
        schema_registry__password="${env:MISSING}",
        encryption__key="env:ARCHIVE_KEY",
    )
    variables = used_variables(draft)
    assert secrets_of(variables) == {
        "ARCHIVE_KEY": True,
        "BROKERS": False,
        "KAFKA_PASSWORD": True,
        "MISSING": True,
        "AWS_ACCESS_KEY_ID": False,
        "AWS_SECRET_ACCESS_KEY": True,
        "HTTPS_PROXY": True,
        "NO_PROXY": False,
    }
    assert [variable.name for variable in variables if variable.value is None] == ["MISSING"]
    in_pod = secrets_of(used_variables(draft, on_this_machine=False))
    assert {"HTTPS_PROXY", "NO_PROXY"}.isdisjoint(in_pod)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"archive": "s3://b"}, ["AWS_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"]),
        ({"archive": "s3://b", "s3__region": "eu"}, ["AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"]),
        ({"archive": "s3://b", "s3__profile": "p"}, ["AWS_REGION", "AWS_PROFILE"]),
        ({"archive": "az://a/c"}, ["AZURE_STORAGE_KEY"]),
        ({"archive": "gs://b"}, ["GOOGLE_APPLICATION_CREDENTIALS"]),
        ({"archive": "gs://b", "gcs__credentials_file": "/f"}, []),
        ({"archive": "/folder"}, []),
        ({"archive": "nothing://"}, []),
    ],
)
def test_a_store_uses_the_variables_that_its_settings_leave_open(settings: dict[str, str], names: list[str]) -> None:
    shell = dict.fromkeys(
        [
            "AWS_REGION",
            "AWS_PROFILE",
            "AWS_ACCESS_KEY_ID",
            "AWS_SESSION_TOKEN",
            "AZURE_STORAGE_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ],
        "x",
    )
    assert [variable.name for variable in used_variables(draft_of(shell, **settings))] == names


def test_a_pod_gets_no_variable_that_names_a_file_of_this_machine(tmp_path: Path) -> None:
    shell = {"AWS_CA_BUNDLE": str(tmp_path), "AWS_ROLE_ARN": "arn:x", "CA": str(tmp_path)}
    draft = draft_of(shell, archive="s3://b", source__ssl__ca__location="${env:CA}")
    names = [variable.name for variable in used_variables(draft, on_this_machine=False)]
    assert names == ["CA", "AWS_ROLE_ARN"], "answers keep what they name"


CERTIFICATES = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"]


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"archive": "/folder"}, False),
        ({"archive": "s3://b", "s3__endpoint_url": "http://minio:9000"}, False),
        ({"archive": "s3://b"}, True),
        ({"archive": "s3://b", "s3__endpoint_url": "https://minio:9000"}, True),
        ({"archive": "/folder", "source__security__protocol": "SASL_PLAINTEXT"}, False),
        ({"archive": "/folder", "source__security__protocol": "SASL_SSL"}, True),
        ({"archive": "/folder", "schema_registry__url": "http://registry:8081"}, False),
        ({"archive": "/folder", "schema_registry__url": "https://registry:8081"}, True),
        ({"archive": "/folder", "notify__url": "${env:WEBHOOK}"}, True),
    ],
)
def test_certificates_of_the_shell_are_listed_only_where_something_speaks_tls(
    settings: dict[str, str], needed: bool
) -> None:
    variables = used_variables(draft_of(dict.fromkeys(CERTIFICATES, "/ca.pem"), **settings))
    listed = {variable.name for variable in variables}
    assert bool(listed & set(CERTIFICATES)) == needed


def test_endpoint_and_region_of_the_shell_are_written() -> None:
    shell = {"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_DEFAULT_REGION": "eu-1", "AWS_REGION": "eu-2"}
    draft = draft_of(shell, archive="s3://b/p")
    draft.take_store_variables()
    assert draft.settings == {"archive": "s3://b/p", "s3.endpoint_url": "http://minio:9000", "s3.region": "eu-2"}
    assert used_variables(draft) == []

    given = draft_of(shell, archive="s3://b/p", s3__region="us-1")
    given.take_store_variables()
    assert given.text("s3.region") == "us-1"


def test_settings_of_the_shell_become_answers() -> None:
    shell = {
        "KBACKUP_ARCHIVE": "/a",
        "KBACKUP_BACKUP_TOPICS": "orders,/x/",
        "KBACKUP_SOURCE_SASL_PASSWORD": "p",
        "KBACKUP_SOURCE_SASL_USERNAME": "u",
        "KBACKUP_SPARK_CONF": "spark.a=b",
        "KBACKUP_TARGET_SASL_PASSWORD": "of a drill",
        "KBACKUP_DEBUG": "1",
    }
    draft = draft_of(shell, source__sasl__username="given")
    assert draft.settings == {
        "archive": "/a",
        "backup.topics": ["orders", "/x/"],
        "source.sasl.password": "${env:KBACKUP_SOURCE_SASL_PASSWORD}",
        "source.sasl.username": "given",
    }
    assert secrets_of(used_variables(draft)) == {"KBACKUP_SOURCE_SASL_PASSWORD": True, "KBACKUP_SPARK_CONF": True}
    config = draft.config()
    assert (config.source["sasl.password"], config.spark.conf, config.target) == ("p", {"spark.a": "b"}, {})


def test_an_answer_that_was_removed_does_not_come_back_from_the_shell() -> None:
    draft = draft_of({"KBACKUP_BACKUP_TOPICS": "orders"}, archive="/a")
    draft.put("backup.topics", "")
    assert draft.config().backup.topics == ()
    assert used_variables(draft) == []


def test_variables_that_no_service_can_have_are_refused() -> None:
    with pytest.raises(UsageError, match="a service can't have the variable KAFKA PASSWORD"):
        used_variables(draft_of({}, source__sasl__password="${env:KAFKA PASSWORD}"))
    with pytest.raises(UsageError, match="the value of the variable P is not UTF-8 text"):
        used_variables(draft_of({"P": "\udcff"}, source__sasl__password="${env:P}"))


def test_files_of_the_answers_are_named_for_a_pod(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    draft = draft_of(
        {}, archive=str(tmp_path), source__ssl__ca__location=str(ca), source__sasl__password="${file:/run/secret}"
    )
    assert files_of_this_machine(draft) == sorted(["/run/secret", str(ca)])


def test_a_java_that_only_the_shell_finds_is_named(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    shell_path = str(java.parent)
    assert java_home(shell_path, "/nowhere") == str(tmp_path / "jdk")
    assert java_home(shell_path, shell_path) == ""
    assert java_home("/nowhere", "/nowhere") == ""


def test_a_unit_has_nothing_of_the_shell() -> None:
    environ = unit_environment()
    assert set(environ) <= {"PATH", "HOME", "SHELL", "USER", "LOGNAME"}
    assert "/usr/bin" in environ["PATH"].split(":")


# The command.


FLAGS = (
    "init",
    "--yes",
    "--bootstrap-server",
    "h:9092",
    "--archive",
    "/archive",
    "--schedule",
    "systemd",
    "--no-check",
)
PASSWORD = ("--set", "source.sasl.password=${env:KAFKA_PASSWORD}")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A folder of its own, and a shell with one password; returns what sets further variables."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("KBACKUP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KAFKA_PASSWORD", "not-to-be-shown")
    return monkeypatch


@pytest.mark.parametrize(
    ("option", "value", "state"),
    [
        ((), "", "to fill in"),
        (("--no-write-secrets",), "", "to fill in"),
        (("--write-secrets",), "not-to-be-shown", "written"),
    ],
)
@pytest.mark.usefixtures("shell")
def test_values_of_secrets_are_written_only_when_told(
    option: tuple[str, ...], value: str, state: str, kbackup: Kbackup
) -> None:
    printed = kbackup(*FLAGS, *PASSWORD, *option, "--json")
    assert values_of(Path("kbackup.env").read_text())["KAFKA_PASSWORD"] == value
    assert {"name": "KAFKA_PASSWORD", "state": state} in printed.json["variables"]
    assert "not-to-be-shown" not in printed.out + printed.err + Path("kbackup.toml").read_text()
    assert stat.S_IMODE(Path("kbackup.env").stat().st_mode) == 0o600


@pytest.mark.usefixtures("shell")
def test_an_environment_file_of_others_is_kept_until_told(kbackup: Kbackup) -> None:
    file = Path("kbackup.env")
    file.write_text("OTHER=1\nKAFKA_PASSWORD=of the file\n")
    file.chmod(0o644)
    assert "kbackup.env exists; nothing was written" in kbackup(*FLAGS, *PASSWORD, code=1).err
    assert not Path("kbackup.toml").exists()

    printed = kbackup(*FLAGS, *PASSWORD, "--overwrite", "--json")
    values = values_of(file.read_text())
    assert (values["OTHER"], values["KAFKA_PASSWORD"]) == ("1", "of the file")
    assert {"name": "KAFKA_PASSWORD", "state": "written"} in printed.json["variables"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.usefixtures("shell")
def test_a_file_that_is_no_text_is_refused(kbackup: Kbackup) -> None:
    Path("kbackup.env").write_bytes(b"A=\xff\n")
    assert "kbackup.env: it is not UTF-8 text" in kbackup(*FLAGS, code=2).err


def test_temporary_credentials_are_warned_of(shell: pytest.MonkeyPatch, kbackup: Kbackup) -> None:
    shell.setenv("AWS_SESSION_TOKEN", "not-to-be-shown")
    err = kbackup(*FLAGS, "--archive", "s3://b/p").err
    assert "warning: AWS_SESSION_TOKEN is of temporary credentials" in err


def test_registry_and_webhook_are_options_too(shell: pytest.MonkeyPatch, kbackup: Kbackup) -> None:
    shell.setenv("WEBHOOK_URL", "https://hooks.example.com/secret")
    kbackup(*FLAGS, "--schema-registry", "http://r:8081", "--notify", "chat")
    config = tomllib.loads(Path("kbackup.toml").read_text())
    assert config["schema_registry"] == {"url": "http://r:8081"}
    assert config["notify"] == {"url": "${env:WEBHOOK_URL}", "body": '{"text": "kbackup $command on $host: $summary"}'}
    kbackup(*FLAGS, "--notify", "json", "--set", "notify.url=${file:/run/hook}", "--overwrite")
    assert tomllib.loads(Path("kbackup.toml").read_text())["notify"] == {"url": "${file:/run/hook}"}


class Refusing(Quiet, BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(404)
        self.end_headers()


def test_a_webhook_that_takes_no_message_is_a_failed_answer() -> None:
    steps = Steps(lambda step: None)
    with serving(Refusing) as url:
        draft = draft_of({"WEBHOOK_URL": f"{url}/hidden"}, archive="/a", notify__url="${env:WEBHOOK_URL}")
        try_webhook(steps, draft.config)
    [step] = steps.done
    assert (step.name, step.status, step.exit_code) == ("notifications", "failed", 1)
    assert "it answered HTTP 404" in step.detail
    assert "hidden" not in step.detail + step.hint


# The check.


def check_with(path: Path, text: str, *program: str) -> CheckStep:
    """Check with an environment file and a program in the place of kbackup; return the only step."""
    variables = [Variable("A", "1", is_secret=False)]
    environment = Environment(SYSTEMD, path / "kbackup.env", variables)
    environment.complete(writes_secrets=True)
    (path / "kbackup.env").write_text(text)
    shown: list[CheckStep] = []
    [step] = check_clean(program, path / "kbackup.toml", (), environment, shown.append)
    assert shown == [step]
    return step


def test_the_check_gets_the_variables_of_the_file_and_no_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "of the shell")
    program = (
        "import json, os\n"
        "names = sorted(set(os.environ) - {'PATH', 'HOME', 'SHELL', 'USER', 'LOGNAME', 'PWD', 'LC_CTYPE'})\n"
        "print(json.dumps({'steps': [{'name': 'x', 'status': 'ok', 'detail': f'{names} {os.getcwd()}'}]}))"
    )
    step = check_with(tmp_path, "A=1\nB='2'\n", sys.executable, "-c", program)
    assert (step.status, step.detail) == ("ok", f"['A', 'B'] {tmp_path}")


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        (["/nowhere/kbackup"], "/nowhere/kbackup can't be run: no such file or directory"),
        (["/bin/sh", "-c", "echo no; exit 7"], "it ended with 7 and no report"),
        (["/bin/sh", "-c", """echo '{"error": {"message": "m", "hint": "h", "exit_code": 2}}'; exit 2"""], "m"),
    ],
)
def test_a_check_without_a_report_is_a_failed_step(program: list[str], detail: str, tmp_path: Path) -> None:
    step = check_with(tmp_path, "A=1\n", *program)
    assert (step.status, step.detail) == ("failed", detail)
    assert step.exit_code != 0
