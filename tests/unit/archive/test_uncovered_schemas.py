"""What names schemas in records and is not mapped: by Apicurio's own forms."""

from __future__ import annotations

import pytest

from kbackup.archive.models import Schemas, TopicState, UsedSchemas
from kbackup.archive.uncovered_schemas import apicurio_ids, apicurio_uses, uncovered
from tests.support.schemas import schemas, version


def topic(apicurio: dict[str, int], fields: int = 10) -> TopicState:
    used = UsedSchemas(part="value", fields=fields, framed=0, sure=0, ids={}, apicurio=apicurio)
    return TopicState(
        name="t", id="", incarnation=1, captured=1, state="present", partitions=(), schemas=(used,), counted=fields
    )


def of_apicurio(*ids: int) -> Schemas:
    of = schemas(*(version("a", n, each) for n, each in enumerate(ids, 1)))
    return type(of)(
        captured_at="", registry="https://host/apis/ccompat/v7", kept="used", versions=of.versions, settings=()
    )


SEVEN = schemas(version("a", 1, 7))


@pytest.mark.parametrize("form", ["contentId 7", "globalId 7", "contentHash", "artifactId"])
def test_a_header_is_sure_without_a_registry(form: str) -> None:
    (words,) = uncovered([topic({form: 1}, fields=1000)], None)
    assert words.startswith(f"values of t name their schemas by the header apicurio.value.{form.split()[0]}")
    assert "(1 record)" in words


@pytest.mark.parametrize(
    ("counts", "fields", "known", "evident"),
    [
        ({"eightBytes 7": 10}, 10, SEVEN, True),
        ({"eightBytes 7": 6, "eightBytes 8": 4}, 10, SEVEN, True),
        ({"eightBytes 7": 4, "eightBytes 8": 6}, 10, SEVEN, False),  # of most of them the registry knows nothing
        ({"eightBytes 8": 10}, 10, of_apicurio(7), True),  # a global id
        ({"eightBytes 8": 10}, 10, None, False),
        ({"eightBytes 7": 4}, 10, SEVEN, False),  # most values begin otherwise
        ({f"eightBytes {n}": 1 for n in range(1, 21)}, 20, of_apicurio(7), False),  # composite keys
        ({"eightBytes 7": 9, "eightBytes": 1}, 10, SEVEN, False),  # more ids than are listed
    ],
)
def test_ids_of_eight_bytes_need_evidence(
    counts: dict[str, int], fields: int, known: Schemas | None, evident: bool
) -> None:
    assert bool(apicurio_uses([topic(counts, fields)], known)) is evident


def test_the_registry_is_asked_for_what_may_be_an_id() -> None:
    of = topic({"contentId 1": 9, "globalId 2": 9, "eightBytes 3": 9, "artifactId": 1})
    assert apicurio_ids([of]) == ({1, 3}, {2, 3}, True, True)
    assert apicurio_ids([topic({"eightBytes 3": 1})]) == (set(), set(), False, True)
    assert not apicurio_ids([topic({"contentId 1": 1, "contentId": 4})]).complete
