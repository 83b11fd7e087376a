"""The page that plans a restore: the command means what the page computes, whatever the names are."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

import pytest

from kbackup.archive.query.selection import exact_entry
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.run import open_or_create
from kbackup.config.models import Restore
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.util.text import printable
from kbackup.web.pages.restore import OFFERED
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import commit_point, group_at, topic_state
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.printed import parsed_command
from tests.support.restores import make_plan
from tests.support.rich_archive import GROUPS, LONG_TOPIC
from tests.support.visits import COMMAND, commands, form_fields, links, tags, text, visit


def planned(store: Store, options: Restore) -> RestorePlan:
    return make_plan(options, store, "")


def facts(html: str) -> dict[str, str]:
    return {label: text(value) for label, value in re.findall(r"<dt>([^<]*)</dt><dd>(.*?)(?:<small>|</dd>)", html)}


ADDRESSES = [
    "/restore",
    "/restore?point=3",
    "/restore?point=2&topic=orders&topic=/cl.*/&exclude_topic=clicks",
    "/restore?topic=orders&to_time=2026-10-03T01:00:00Z",
    "/restore?point=5&from_time=2026-10-02T00:00:00.5Z&to_time=1790992800000",
    "/restore?range=orders:0:5-30&range=orders:2:-&range=odd:0:3-",
    "/restore?map_regex=^=restored.&group=shipping&exclude_group=/b.*/&exclude_topic=/pay.*/",
    f"/restore?map_from=orders&map_to=again&map_from={LONG_TOPIC}&map_to=long&map_from=odd&map_to=",
    "/restore?skip=orders:0:5&skip=orders:1:3-7&topic=orders&where=.value.total%20%3E%2050%20and%20.key%20!=%20%22$x'%22",
    "/restore?no_groups=1&topic=&group=&group=billing",
    "/restore?same_offsets=1&topic=orders",
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("address", ADDRESSES)
def test_the_command_restores_the_shown_plan(rich: Store, address: str) -> None:
    client = visit(rich)
    dry, wet, verify = commands(client, address)
    assert "--dry-run" in dry
    assert [word for word in dry if word != "--dry-run"] == wet
    config = parsed_command(dry)
    assert config.archive == rich.url
    plan = planned(rich, config.restore)
    compared = ["--archive", rich.url, "--against", "target", "--restore-id", config.restore.restore_id]
    assert verify == ["kbackup", "verify", *compared, *(["--groups"] if plan.groups else [])]
    html = client.get(address).text
    shown = facts(html)
    assert shown["records"] == f"{plan.records:,}"
    assert f'<data class="n" value="{plan.bytes}"' in html
    assert shown["partitions"] == str(sum(t.partitions for t in plan.topics))
    assert (shown["topics"], shown["groups"]) == (str(len(plan.topics)), str(len(plan.groups)))
    assert ("at most" in html) == (plan.choice is not None)
    for name in (*(t.source for t in plan.topics), *(g.source for g in plan.groups)):
        shown_name = printable(name or "(no name)")
        assert shown_name.replace(" ", "") in text(html).replace(" ", "")


HOSTILE = (
    *GROUPS,
    *("--json", "-x", "/looks like a regex/", " blanks ", "=ls", "${env:HOME}", "$${file:/etc/passwd}", "~", "!!"),
    *("a\nkbackup: all is well", "a\r\x1b[1Adone", 'it\'s $(reboot) `reboot` \\ "quoted"', "\U000e0001", "\x7f", "\\"),
    *("#", "*", "{a,b}", "a;b", "grüße 日本 🎉", "a=b", "%41", "[red]"),
)


@pytest.mark.exhaustive
def test_commands_survive_hostile_names() -> None:
    """Each group is selected by its link, and renamed by what a browser sends from the fields of the page."""
    store = MemoryStore()
    state = topic_state("orders", [(0, 10, [])])
    groups = [group_at(name, ("orders", 0, 3)) for name in HOSTILE]
    commit_point(open_or_create(store), 1, topics=[state], groups=groups)
    client = visit(store)
    for name in HOSTILE:
        query = urlencode({"group": exact_entry(name)})
        (link,) = (each for each in links(client.get("/group", params={"name": name}).text) if query in each)
        config = parsed_command(commands(client, link)[0])
        assert [g.source for g in planned(store, config.restore).groups] == [name]
        fields = form_fields(client.get(link).text)
        for target in (f"new {name}".strip(), "plain"):
            filled = [(k, target if k == "map_group_to" else v) for k, v in fields]
            words = commands(client, f"/restore?{urlencode(filled)}")[1]
            config = parsed_command(words)
            assert config.restore.map_group == {name: target}
            assert [(g.source, g.target) for g in planned(store, config.restore).groups] == [(name, target)]


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ("topic=ordrs", "topic", "there is no topic ordrs"),
        ("topic=/(/", "topic", "is no regular expression"),
        ("topic=/none.*/", "topic", "matches /none.*/"),
        ("topic=orders&exclude_topic=/.*/", "exclude_topic", "exclude patterns leave out every topic"),
        ("to_time=soon", "to_time", "soon is not a time"),
        ("to_time=2026-13-45", "to_time", "there is no month 13 and no day 45"),
        ("to_time=1971-01-01 00:00Z", "to_time", "is before the archive begins"),
        ("from_time=soon", "from_time", "soon is not a time"),
        ("range=orders", "range", "is not a list of topic:partition:from-to"),
        ("range=orders:0:0-999999", "range", "is archived from"),
        ("range=orders:0:-&topic=odd", "range", "--range names its topics itself"),
        ("skip=orders:0:1&skip=orders", "skip", "is not a list of topic:partition:from-to"),
        ("skip=orders:0:999999", "skip", "is archived from"),
        ("skip=orders:9:1", "skip", "has no partition 9"),
        ("skip=odd:0:1&topic=orders", "skip", "topic odd is not restored"),
        ("where=.value.(", "where", "can't be used"),
        ("where=now > 1", "where", "now is not the same each time"),
        ("map_from=nope&map_to=x", "", "--map names topic nope"),
        ("map_from=orders&map_to=odd", "", "would both become odd"),
        ("map_from=orders&map_to=a/b", "", "can't be restored as"),
        ("group=nobody", "group", "there is no group nobody"),
        ("map_regex=no-sign", "map_regex", "is not"),
        ("from_time=2026-10-09T00:00:00Z&to_time=2026-10-01T00:00:00Z", "from_time", "is later than"),
    ],
)
def test_an_impossible_restore_says_why(rich: Store, query: str, field: str, message: str) -> None:
    """Beside the field. The form stays, with all that was entered; there is no command to copy."""
    answer = visit(rich).get(f"/restore?{query}")
    assert answer.status_code == 400
    assert message in text(answer.text)
    marked = {a["name"] for _, a in tags(answer.text) if a.get("aria-invalid")}
    assert marked == ({field} if field else set())
    assert ('id="wrong"' in answer.text) == bool(field)
    assert not COMMAND.search(answer.text)
    kept = {(name, value) for name, value in form_fields(answer.text) if value}
    assert {(k, v) for k, v in parse_qsl(query) if v} <= kept


def test_every_page_leads_to_its_restore(rich: Store) -> None:
    client = visit(rich)
    for address, query in (
        ("/points/3", "point=3"),
        ("/topics/orders", "topic=orders"),
        ("/topics/orders?point=2", "point=2&topic=orders"),
        ("/topics/orders/1", "range=orders%3A1%3A-"),
        ("/topics/orders/1/records?offset=5&n=20", "range=orders%3A1%3A5-25"),
        ("/topics/orders/1/records/7", "range=orders%3A1%3A7"),
        ("/topics/orders/1/records/7", "topic=orders&to_time=2026-09-30T"),
    ):
        (link,) = {each for each in links(client.get(address).text) if f"/restore?{query}" in each}
        assert client.get(link).status_code == 200
    for address in ("/", "/growth"):
        (field,) = (a for tag, a in tags(client.get(address).text) if a.get("name") == "to_time")
        assert "2h ago" in (field["placeholder"] or "")


def test_relative_times_become_absolute(rich: Store) -> None:
    """A command that is run later restores what the page computed."""
    config = parsed_command(commands(visit(rich), "/restore?to_time=now")[0])
    assert re.fullmatch(r"[-0-9T:]{19}\.\d{3}Z", config.restore.to_time or "")
    assert config.restore.restore_point == "latest"


def test_topics_to_tick_and_an_id_to_resume_by(rich: Store) -> None:
    client = visit(rich)
    html = client.get("/restore?topic=orders").text
    ticks = {
        a["value"]: "checked" in a for tag, a in tags(html) if a.get("type") == "checkbox" and a["name"] == "topic"
    }
    assert {"orders": True, "clicks": False}.items() <= ticks.items()
    assert html.index('id="plan"') < html.index("What it restores") < html.index("<pre")
    ids = {parsed_command(command).restore.restore_id for command in commands(client, "/restore?topic=orders")}
    assert len(ids) == 1, ids
    assert None not in ids


def test_many_topics_are_filtered(rich: Store) -> None:
    store = MemoryStore()
    names = [f"topic-{n:03}" for n in range(OFFERED + 1)]
    commit_point(open_or_create(store), 1, topics=[topic_state(name, [(0, 1, [])]) for name in names])
    client = visit(store)
    html = client.get(f"/restore?topic=topic-007&topic={names[-1]}").text
    topics = [(a["value"], "checked" in a) for tag, a in tags(html) if a.get("name") == "topic" and a.get("value")]
    assert len(topics) == OFFERED + 1, "to tick, and the one that is entered"
    assert ("topic-007", True) in topics
    assert f"These are {OFFERED} of {OFFERED + 1} topics" in text(html)
    assert ("data-filter" in html, "data-filter" in visit(rich).get("/restore").text) == (True, False)


def test_a_plan_takes_few_requests(rich: Store) -> None:
    """The documents of the restore point alone: the catalog and its tables are in memory."""
    store = FaultyStore(rich)
    client = visit(store)
    client.get("/")
    before = len(store.calls)
    assert client.get("/restore?topic=orders&to_time=2026-10-03T01:00:00Z").status_code == 200
    assert {operation for operation, _ in store.calls[before:]} == {"get"}
    assert len(store.calls) - before <= 8


def test_folders_of_the_java_tool() -> None:
    store = FileStore(JAVA / "archive")
    client = visit(store)
    words = commands(client, "/restore?topic=audit_log")[0]
    config = parsed_command(words)
    assert planned(store, config.restore).records > 0
    assert "--restore-point" not in words
