"""The pages of schemas: subjects, versions and their differences, and the ways to them."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from starlette.testclient import TestClient

from kbackup.archive.schemas import archived_schemas
from kbackup.jobs.decoding import Decoding
from kbackup.schemas.base import RegistryOptions, SchemaReference, SchemaVersion
from kbackup.store.base import Store
from kbackup.web.decoding import FieldDecoder
from kbackup.web.pages.schemas import LINES, compare
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.rich_archive import ATTACK, SCRIPT, TURNED
from tests.support.schema_archive import SECOND, SchemaArchive, make_schema_archive, order, schema_version
from tests.support.visits import links, text, visit


def decodes(store: Store) -> TestClient:
    decoder = FieldDecoder(lambda schemas: Decoding(archived_schemas(schemas, RegistryOptions()).decoders(), mm2=True))
    return visit(store, decoder=decoder)


@pytest.fixture(scope="module")
def client() -> TestClient:
    store = MemoryStore()
    make_schema_archive(store)
    return decodes(store)


def strange(versions: Iterable[SchemaVersion]) -> TestClient:
    store = MemoryStore()
    SchemaArchive(store).night({"orders": [order(1, {"item": "pen", "count": 1})]}, versions)
    return decodes(store)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/schemas", "As they were 2026-01-02"),
        ("/schemas", "orders-value AVRO 2 2, 3 BACKWARD orders"),
        ("/schemas", "money.proto PROTOBUF 1 4 BACKWARD"),
        ("/schemas", "1 value of orders with schema 99, which this restore point lacks"),
        ("/schemas?q=cart", "carts-value PROTOBUF 1 5 BACKWARD carts 1 subject"),
        ("/schemas?q=nothing", "No subject has “nothing” in its name"),
        ("/schema?subject=orders-value", "compatibility BACKWARD of the registry"),
        ("/schema?subject=orders-value", "2 3 1 value of orders"),
        ("/schema?subject=orders-value&version=1", "1 2 1 value of orders"),
        ("/schema?subject=orders-value&version=1", "compare with 1"),
        ("/schema?subject=orders-value&version=2&before=1", "From version 1 to 2"),
        ("/schema?subject=orders-value&version=2&before=2", "Their texts are the same"),
        ("/schema?subject=carts-value", 'import "money.proto"; message Cart'),
        ("/topics/orders", "keys 1 orders-key 1 4"),
        ("/topics/orders", "values 99 not in the restore point 1"),
        ("/topics/carts/0/records/0", "decoded: PROTOBUF, schema 5 · its text"),
    ],
)
def test_pages_of_schemas_show_versions_and_subjects(client: TestClient, address: str, words: str) -> None:
    assert words in text(client.get(address).text)


def test_ways_to_a_version(client: TestClient) -> None:
    assert "/schemas/5" in links(client.get("/topics/carts/0/records/0").text)
    found = client.get("/schemas/5?point=1")
    assert (found.status_code, found.headers["location"]) == (303, "/schema?point=1&subject=carts-value&version=1")
    assert "/schema?subject=money.proto&version=1" in links(client.get("/schema?subject=carts-value").text)
    assert "/schema?subject=orders-value&version=2" in links(client.get("/topics/orders").text)
    assert "/schemas" in links(client.get("/").text)


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/schemas/99", 404, "the restore point has no schema 99"),
        ("/schemas/²", 404, "the restore point has no schema ²"),
        (f"/schemas/{'9' * 5000}", 404, "the restore point has no schema 9"),
        ("/schema?subject=nothing", 404, "there is no subject nothing in the restore point"),
        ("/schema?subject=orders-value&version=7", 404, "there is no version 7 of subject orders-value"),
        ("/schema?subject=orders-value&before=7", 404, "there is no version 7 of subject orders-value"),
        ("/schema?subject=orders-value&page=0", 400, "page"),
    ],
)
def test_what_is_not_there(client: TestClient, address: str, status: int, words: str) -> None:
    answer = client.get(address)
    assert answer.status_code == status
    assert words in text(answer.text)


def test_every_link_leads_somewhere(client: TestClient) -> None:
    pages = [client.get(f"/{page}").text for page in ("schemas", "schema?subject=orders-value", "topics/orders")]
    every = {link for page in pages for link in links(page) if link.startswith("/schema")}
    assert len(every) > 8
    assert {link: client.get(link).status_code for link in every} == dict.fromkeys(every, 200)


def test_an_archive_without_schemas_has_no_entry() -> None:
    store = MemoryStore()
    make_archive(store)
    client = visit(store)
    assert "/schemas" not in links(client.get("/").text)
    assert "This restore point has no schemas" in text(client.get("/schemas").text)


def test_names_and_texts_that_try_to_be_code() -> None:
    name = f":.other:a/b?{ATTACK}{TURNED}"
    hostile = json.dumps({"type": "string", "doc": SCRIPT})
    versions = [
        schema_version(name, 1, 7, f'"{SCRIPT}"', state="gone"),
        schema_version(name, 2, 8, hostile, state="deleted", metadata={"owner": ATTACK}),
        schema_version(name, 3, 9, f"message {SCRIPT} {{}}", "PROTOBUF"),
        schema_version(
            name, 4, 10, "not JSON \x1b[31m", references=(SchemaReference(name=ATTACK, subject=name, version=1),)
        ),
    ]
    client = strange([*SECOND, *versions])
    for address in (
        "/schemas",
        *(client.get(f"/schemas/{schema_id}").headers["location"] for schema_id in range(7, 11)),
        *(client.get(f"/schemas/{n}").headers["location"] + f"&before={b}" for n, b in ((8, 1), (9, 2), (10, 3))),
    ):
        html = client.get(address).text
        assert client.get(address).status_code == 200, address
        assert html.count("<script") == 2, "the page's own"
        assert ATTACK not in html, address
        assert "\x1b" not in html, address
        assert "\u202e" not in html, address
    listed = text(client.get("/schemas").text)
    assert "2 deleted" in listed
    shown = text(client.get(client.get("/schemas/8").headers["location"]).text)
    assert "deleted" in shown
    assert "gone" in shown
    assert '"owner"' in shown


def test_ten_thousand_subjects_in_pages() -> None:
    client = strange([*SECOND, *(schema_version(f"s{n:05}", 1, 100 + n, '"int"') for n in range(9_995))])
    first, last = client.get("/schemas"), client.get("/schemas?page=100")
    assert "100 of 10,000 subjects" in text(first.text)
    assert "10,000 of 10,000 subjects" in text(last.text)
    assert len(first.content) < 100_000


def test_a_subject_of_many_versions_in_pages() -> None:
    client = strange(
        [*SECOND, *(schema_version("many", n, 100 + n, f'{{"type": "int", "n": {n}}}') for n in range(1, 251))]
    )
    assert "100 of 250 versions" in text(client.get("/schema?subject=many").text)
    assert "250 of 250 versions" in text(client.get("/schema?subject=many&version=7").text)
    assert "200 of 250 versions" in text(client.get("/schema?subject=many&version=7&page=2").text)


def test_lines_side_by_side() -> None:
    one, two = ({"a": n, "same": [1, 2, 3, 4, 5, 6, 7], **({"new": 1} if n > 1 else {})} for n in (1, 2))
    found, whole = compare(
        schema_version("a", 1, 1, json.dumps(one)), schema_version("a", 2, 2, json.dumps(two, indent=1))
    )
    changed = [(line.kind, *line.left, *line.right) for hunk in found for line in hunk if line.kind != "equal"]
    assert changed == [
        ("replace", 2, '  "a": 1,', 2, '  "a": 2,'),
        ("replace", 11, "  ]", 11, "  ],"),
        ("replace", "", "", 12, '  "new": 1'),
    ]
    assert len(found) == 2
    assert whole


def test_a_comparison_of_long_texts_ends() -> None:
    """Also of texts that were made to take long."""
    a = "\n".join(str(n % 97) for n in range(40_000))
    b = "\n".join(str(n % 89) for n in range(40_000))
    found, whole = compare(schema_version("a", 1, 1, a), schema_version("a", 2, 2, b))
    assert not whole
    assert max(int(line.left[0] or 0) for hunk in found for line in hunk) == LINES
