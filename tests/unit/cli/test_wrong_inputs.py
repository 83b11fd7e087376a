"""Wrong command lines: each names what is wrong, and says what to do, with an exit code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup import cli
from kbackup.config.times import TIMES
from kbackup.config.windows import ADDRESSES
from kbackup.store import open_store
from kbackup.store.registry import forms
from tests.support.archives import make_archive

FILES = {
    "broken.toml": "archive = s3://b\n",
    "unknown.toml": '[backup]\nsegment_byte = "1MiB"\n',
    "size.toml": '[backup]\nsegment_bytes = "big"\n',
    "twice.toml": 'backup.wait = true\n"backup.wait" = true\n',
    "jks.properties": "ssl.truststore.location=/x.jks\n",
    "mm2.properties": "clusters = A\n",
    "plain.properties": "bootstrap.servers=b:1\n",
}
SIZE = "set backup.segment_bytes: A segment ends with the record that makes its file larger than this."
NEWEST = "select another one: the newest is 2; see 'kbackup list'"
ADDRESS = f"write {forms()}"
KEYS = "`kbackup config --keys` lists all"
GIVEN = ("-a", "archive")


def help_of(command: str) -> str:
    return f"try 'kbackup {command} --help'"


WRONG: list[tuple[str, int, str, str]] = [
    # commands and options
    ("bakup", 2, "no such command: bakup; did you mean backup?", "try 'kbackup --help'"),
    ("groups shw", 2, "no such command 'shw'; did you mean 'show'?", help_of("groups")),
    ("list --labl x", 2, "no such option '--labl'; did you mean '--label'?", help_of("list")),
    ("list archive extra", 2, "got unexpected extra argument (extra)", help_of("list")),
    ("cat -a archive", 2, "missing argument 'PLACE'", "name one of clicks, orders, as in: kbackup cat clicks"),
    ("keep -a archive", 2, "missing argument 'N|LABEL|latest'", help_of("keep")),
    (
        "label 1 -a archive",
        2,
        "a restore point or a label is missing",
        "give both, for instance: kbackup label 41 NAME",
    ),
    (
        "verify archive --bootstrap-server b:1",
        2,
        "options of a comparison need --against",
        "give --against target or source",
    ),
    (
        "verify archive --against source --target-config plain.properties",
        2,
        "--target-config is for the target cluster, and --against names the source",
        "give --source-config, or --against target",
    ),
    ("verify archive --exact", 2, "options of a comparison need --against", "give --against target or source"),
    ("backup -a archive --interval 5s", 2, "--interval needs --follow", "add --follow, or leave it out"),
    ("export -a archive", 2, "no destination is named", "give --delta URL or --parquet URL"),
    ("find -a archive", 2, "no search text is given", "give TEXT, or an expression with --jq"),
    ("groups undo -a archive", 2, "no restore is named", "give --restore-id"),
    # archives and clusters
    (
        *("list", 2, "no archive is named"),
        "give --archive, set KBACKUP_ARCHIVE, or archive in kbackup.toml; 'kbackup init' asks for all of it and writes "
        "that file",
    ),
    (
        *("backup -a archive", 2, "no source cluster is named"),
        "set bootstrap.servers in [source] of kbackup.toml, which 'kbackup init' writes, or give --bootstrap-server",
    ),
    ("list nowhere", 10, "there is no archive at nowhere", "check the address, or make one with 'kbackup backup'"),
    ("repair nowhere", 10, "there is no archive at nowhere", "check the address"),
    ("list s3:/b/x", 2, "invalid address 's3:/b/x'", ADDRESS),
    ("copy ftp://x/y -a archive", 2, "invalid address 'ftp://x/y'", ADDRESS),
    ("list s3://", 2, "address 's3://' names no bucket", "write s3://bucket/prefix"),
    (
        *("key list archive --encryption-key env:HOME", 12, "archive archive is not encrypted, but a key is given"),
        "remove encryption.key, or make another archive: an archive is encrypted from its start or never",
    ),
    (
        *("key rotate archive --to secret", 2, "the key is not named by the place where it is"),
        "write file:/path, env:NAME or command:program arguments",
    ),
    # names
    ("info order -a archive", 2, "there is no topic order in restore point 2", "did you mean orders?"),
    ("cat ordres -a archive", 2, "there is no topic ordres in restore point 2", "did you mean orders?"),
    ("groups show biling -a archive", 2, "there is no group biling in restore point 2", "did you mean billing?"),
    ("list archive --label befor", 2, "no restore point has label 'befor'", "did you mean before?"),
    ("info -a archive -b befor", 2, "there is no restore point befor", "did you mean 'before'?"),
    ("keep 99 -a archive", 2, "there is no restore point 99", NEWEST),
    ("diff 1 99 -a archive", 2, "there is no restore point 99", NEWEST),
    (
        *(
            "label 1 9lives -a archive",
            2,
            "label '9lives' can't be used: it is a number, a word of commands, or has other characters",
        ),
        "begin with a letter, then use letters, digits, '.', '_' and '-', at most 100",
    ),
    # numbers, times, addresses
    ("cat orders -c many -a archive", 2, "--limit: 'many' is not a whole number", help_of("cat")),
    ("expire archive --keep-last 0", 2, "--keep-last: 0 is less than 1", help_of("expire")),
    (
        *("expire archive --older-than soon", 2, "--older-than: soon is not a duration: give one such as 30d or 12h"),
        help_of("expire"),
    ),
    ("cat orders --output xml", 2, "--output: 'xml' is not one of 'text', 'json', 'hex'", help_of("cat")),
    (
        *("info -a archive --to-time yesterday", 2),
        "--to-time yesterday is not a time: it has no time of day; give 'yesterday 00:00', or another one",
        f"give {TIMES}",
    ),
    (
        *("restore -a archive --to-time 2026-13-45", 2),
        "--to-time 2026-13-45 is not a time: there is no month 13 and no day 45",
        f"give {TIMES}",
    ),
    (
        *("cat orders -a archive --to-time 2026-10-25T02:30:00 --tz Europe/Berlin", 2),
        "--to-time 2026-10-25T02:30:00 is not a time: 02:30:00 is twice on 2026-10-25 in Europe/Berlin, as clocks go "
        "back: it is 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00",
        f"give {TIMES}",
    ),
    (
        *("cat orders -a archive --to-time 2026-10-25T02:30:00 --tz Berlin", 2),
        "--tz: Berlin is not a time zone; give one such as Europe/Berlin or UTC",
        help_of("cat"),
    ),
    (
        *("info -a archive --to-time 1769860800", 2),
        "--to-time 1769860800 is not a time: it looks like seconds; in milliseconds it is 1769860800000",
        f"give {TIMES}",
    ),
    (
        *("cat orders --from-time now --to-time 0 -a archive", 2, "--from-time now is later than --to-time 0"),
        "give the earlier time as --from-time",
    ),
    ("ls orders:x -a archive", 2, "orders:x is not an address in an archive", f"give {ADDRESSES}"),
    (
        *("ls orders:9 -a archive", 2, "topic orders has no partition 9 in restore point 2"),
        "run 'kbackup ls orders', which lists its 3",
    ),
    (
        *("cat orders:0:12 -a archive", 2, "there is no record at offset 12 of orders-0 in restore point 2"),
        "use 'orders:0:12-' to begin at the next record; the archive has offsets 0 to 41 (exclusive), without those of "
        "compaction and transactions",
    ),
    (
        "ui -a archive --listen 127.0.0.1:99999",
        2,
        "can't listen on '127.0.0.1:99999'",
        "write host:port, such as 127.0.0.1:9464",
    ),
    # configuration
    ("config --config none.toml", 2, "none.toml: no such file or directory", "name a readable file"),
    (
        *("config --config broken.toml", 2, "broken.toml: not TOML: Invalid value (at line 1, column 11)"),
        'put strings in quotes: name = "value"',
    ),
    (
        *("config --config unknown.toml", 2, "file unknown.toml: unknown key backup.segment_byte"),
        f"did you mean backup.segment_bytes? {KEYS}",
    ),
    (
        *("config --config size.toml", 2),
        "file size.toml: backup.segment_bytes 'big' is not a size such as 8MiB, at least 1",
        SIZE,
    ),
    (
        *("config --config twice.toml", 2, "twice.toml: backup.wait is set twice"),
        "remove one: it is written both quoted and as a table",
    ),
    ("config --set backup", 2, "--set: expected name=value", help_of("config")),
    (
        *("config --set backup.topics=${env:NOT_SET}", 2),
        "flag --set: backup.topics: the environment variable NOT_SET is not set",
        "set it, or remove the reference",
    ),
    (
        *("config --set source.bootstrap.serverz=h", 2),
        "flag --set: source.bootstrap.serverz: librdkafka has no property bootstrap.serverz",
        "did you mean bootstrap.servers?",
    ),
    (
        *("backup -a archive --topic /(/", 2, "flag -t: backup.topics: '(' is no regular expression"),
        "mend it: missing ), unterminated subpattern at position 0",
    ),
    (
        *("backup -a archive --compression gzip", 2),
        "flag --compression: backup.compression 'gzip' is not none or zstd",
        "set backup.compression: Compression of new segments. `none` writes the Java tool's files byte for byte.",
    ),
    (
        *("backup -a archive --source-config jks.properties", 2),
        "jks.properties: ssl.truststore.location is a JKS trust store, which only Java reads",
        "make it PEM: `keytool -list -rfc -keystore /x.jks | sed -n '/-BEGIN/,/-END/p' > ca.pem`, and set "
        "ssl.truststore.type=PEM, ssl.truststore.location=ca.pem",
    ),
    (
        "mirror mm2.properties",
        2,
        "mm2.properties: clusters names A",
        "name at least two different clusters: clusters = A, B",
    ),
    (
        *("list archive --metrics-file /none/x.prom", 2, "can't write the metrics file /none/x.prom"),
        "name a file in a folder that can be written",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    make_archive(open_store(str(folder / "archive")))
    for name, text in FILES.items():
        (folder / name).write_text(text)
    assert cli.main(["label", "1", "before", "-a", str(folder / "archive")]) == 0
    return folder


@pytest.mark.parametrize(("line", "code", "message", "hint"), WRONG, ids=[line for line, *_ in WRONG])
def test_a_wrong_input_ends_with_its_code_message_and_hint(
    *,
    line: str,
    code: int,
    message: str,
    hint: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    ended = cli.main(line.split())
    assert capsys.readouterr() == ("", f"kbackup: {message}\nhint: {hint}\n")
    assert ended == code
