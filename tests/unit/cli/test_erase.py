"""`kbackup erase`: what it takes, what it shows, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.store import open_store
from tests.support.printed import Kbackup
from tests.support.schema_archive import make_schema_archive


def test_a_dry_run_names_the_command_that_erases(mine: str, kbackup: Kbackup) -> None:
    printed = kbackup("erase", mine, "-t", "orders", "--key", "key 1")
    assert "14 records would be erased, of 46 that were looked at" in printed.out
    assert "nothing was changed; to erase: kbackup erase" in printed.err
    assert "--confirm" in printed.err
    assert kbackup("erase", mine, "-t", "orders", "--key", "key 1", "--json").json["records"] == 14


def test_records_are_erased_and_the_log_has_the_reason(mine: str, kbackup: Kbackup, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"key 1\r\n\nkey 2\n")
    options = ("erase", mine, "-t", "/.*/", "--key-file", str(keys))
    printed = kbackup(*options, "--reason", "request 7", "--confirm")
    assert "records erased, of 66 that were looked at" in printed.out
    assert "are deleted by the first 'kbackup expire --confirm' after" in printed.err
    assert "no record of 24 matches: nothing was erased" in kbackup(*options).out
    fields = dict(line.split(":", 1) for line in kbackup("info", "-a", mine).out.splitlines() if ": " in line)
    assert fields["erased"].strip() == "42 records"
    log = kbackup("log", "-a", mine).out
    assert "42 records erased: request 7" in log
    assert "key 1" not in log
    assert kbackup("cat", "orders:0", "-a", mine).out.count("key 1") == 0
    assert "no findings" not in kbackup("verify", mine, "--quick").err


def test_the_topics_that_the_source_still_has_are_named_with_what_deletes_there(mine: str, kbackup: Kbackup) -> None:
    options = ("erase", mine, "-t", "/.*/", "--key", "key 1")
    servers = ("--set", "source.bootstrap.servers=kafka:9092")
    dry_run = kbackup(*options, *servers)
    assert "the source still has orders, until the retention there" in dry_run.err
    assert "kafka-delete-records.sh --bootstrap-server kafka:9092 --offset-json-file FILE" in dry_run.err
    assert "they bring records back only of a topic that is created again" in dry_run.err
    assert "HOST:PORT" in kbackup(*options, "--confirm").err
    assert "the source still has" not in kbackup(*options).err, "nothing is left to erase"


def test_metrics_count_what_was_looked_at_and_what_was_erased(mine: str, kbackup: Kbackup, tmp_path: Path) -> None:
    file = tmp_path / "kbackup.prom"
    options = ("erase", mine, "-t", "orders", "--key", "key 1", "--metrics-file", str(file))

    def counted(name: str) -> list[str]:
        return [line.rpartition(" ")[2] for line in file.read_text().splitlines() if line.startswith(f"{name}{{")]

    kbackup(*options)
    assert counted("kbackup_records_total") == ["46.0"]
    assert counted("kbackup_erased_records_total") == [], "a dry run erases nothing"
    kbackup(*options, "--confirm")
    assert counted("kbackup_erased_records_total") == ["14.0"]


def test_status_warns_until_the_objects_are_gone(mine: str, kbackup: Kbackup) -> None:
    kbackup("erase", mine, "-t", "orders", "--key", "key 1", "--confirm")

    def erasures() -> list[str]:
        document = kbackup("status", mine, "--json", "--max-age", "9000d", code=3).json
        return [finding["message"] for finding in document["findings"] if finding["subject"] == "erasure"]

    (message,) = erasures()
    assert message.startswith("14 records of the archive were erased, and 6 objects")
    kbackup("expire", mine, "--confirm", "--grace", "0s")
    document = kbackup("status", mine, "--json", "--max-age", "9000d").json
    assert "erasure" not in {finding["subject"] for finding in document["findings"]}


def test_an_expression_selects_records_by_their_values(mine: str, kbackup: Kbackup) -> None:
    out = kbackup("erase", mine, "-t", "orders", "--jq", '.value | startswith("value 7 ")').out
    assert "2 records would be erased" in out


def test_an_expression_that_fails_erases_nothing(mine: str, kbackup: Kbackup) -> None:
    printed = kbackup("erase", mine, "-t", "orders", "--jq", ".value.id == 7", "--confirm", code=2)
    assert "--jq fails for 46 records" in printed.err
    assert "nothing was erased" in printed.err


@pytest.fixture
def decodable(tmp_path: Path) -> str:
    """An archive with schemas: the keys of orders are long numbers, and the last one of them can't be decoded."""
    store = open_store(str(tmp_path / "decodable"))
    make_schema_archive(store)
    return store.url


def test_keys_are_selected_by_the_json_that_they_decode_to(decodable: str, kbackup: Kbackup) -> None:
    selected = ("-t", "carts", "-t", "plain", "-t", "events", "--key-json", '"anna"', "--key", "key")
    assert "2 records would be erased, of 3" in kbackup("erase", decodable, *selected).out
    assert "2 records erased" in kbackup("erase", decodable, *selected, "--confirm").out
    assert "no record of 1 matches" in kbackup("erase", decodable, *selected).out


def test_a_key_that_cannot_be_decoded_erases_nothing(decodable: str, kbackup: Kbackup) -> None:
    # A decodable key of the same topic is found, and left.
    options = ("-t", "orders", "--key-json", "2")
    printed = kbackup("erase", decodable, *options, "--confirm", code=2)
    assert "the keys of 1 record can't be compared with JSON, the first: orders:0:3: not AVRO" in printed.err
    assert "nothing was erased" in printed.err
    assert kbackup("cat", "orders", "-a", decodable).out.count("\n") == 4
    # The broken one goes by its bytes.
    broken = ("--key-hex", "0000000001ff")
    assert "2 records erased, of 4" in kbackup("erase", decodable, *options, *broken, "--confirm").out
    assert [record["key"] for record in kbackup("cat", "orders", "-a", decodable, "--json").records] == [1, 3]


def test_an_expression_that_passes_over_what_cannot_be_decoded_is_told_so(decodable: str, kbackup: Kbackup) -> None:
    expression = '(.value | type) == "object" and .value.item == "pen"'
    printed = kbackup("erase", decodable, "-t", "orders", "--jq", expression)
    assert "1 record would be erased, of 4" in printed.out
    assert "1 of 3 values could not be decoded and are used undecoded; the first: orders:0:3" in printed.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--key", "a"), "no topic is given"),
        (("-t", "orders"), "give either keys or an expression"),
        (("-t", "orders", "--key", "a", "--jq", "."), "give either keys or an expression"),
        (("-t", "orders", "--key-json", "a", "--jq", "."), "give either keys or an expression"),
        (("-t", "orders", "--key-json", "{id: 7}"), "--key-json {id: 7} is no JSON"),
        (("-t", "orders", "--key-hex", "3g"), "--key-hex 3g is not hexadecimal"),
        (("-t", "order", "--key", "a"), "there is no topic order in this archive"),
        (("-t", "orders", "--key", "a", "--reason", "a\nb"), "--reason has several lines"),
        (("-t", "orders", "--key-file", "missing"), "missing"),
    ],
)
def test_wrong_input_is_refused_by_name(mine: str, kbackup: Kbackup, options: tuple[str, ...], words: str) -> None:
    assert words in kbackup("erase", mine, *options, code=2).err
