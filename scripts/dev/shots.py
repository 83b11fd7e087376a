"""Take screenshots of every page of the web page: python -m scripts.dev.shots FOLDER [NAME...]

Each page is taken wide and on a phone, light and dark, of an archive in memory with something on every page: hostile
names, many topics, losses, expired records, drills. Lists are also taken of archives without restore points, with two
and with a hundred, and of a folder of the Java tool. NAME limits the pages.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec
import uvicorn
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.archive.schemas import archived_schemas
from kbackup.cli.common.command_lines import command_line
from kbackup.cli.restore import command as restore
from kbackup.jobs.decoding import Decoding
from kbackup.jobs.points import label, pin
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.verify import record_verification, verify
from kbackup.metadata.entities import Znode
from kbackup.metrics.registry import Silent
from kbackup.schemas.base import RegistryOptions
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.util.times import now
from kbackup.web.app import make_app
from kbackup.web.archive_cache import ArchiveCache
from kbackup.web.decoding import FieldDecoder
from kbackup.web.guard import Access
from scripts.dev.tools import MissingToolError, browser
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import commit_point, group_at, make_archive
from tests.support.drill_reports import EVIL, comparison, store_drill
from tests.support.memory_store import MemoryStore
from tests.support.rich_archive import ATTACK, LONG_GROUP, LONG_TOPIC, make_rich
from tests.support.schema_archive import make_schema_archive
from tests.support.verifications import no_spark

NIGHTS = 24
SERVICES = 95
STRANGE = ("מפתחות הזמנות", "مجموعة الطلبات", "  two  blanks  ", "日本語のグループ" * 6, "🎉 <b>bold</b> & 'quoted'")


def make_shot_archive(store: Store) -> None:
    """Write some hundred topics, 20 restore points and more, and let the oldest records expire."""
    archive = make_rich(store, nights=NIGHTS, services=SERVICES, each=30)
    head = archive.head
    assert head is not None
    at = datetime.fromisoformat(head.committed_at)
    znodes = [
        Znode(path="/controller", content='{"brokerid": 3000, "kraftControllerEpoch": 5}'),
        Znode(path="/migration", content='{"kraft_metadata_offset": 99}'),
    ]
    later = (at + timedelta(days=1)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    groups = archive.groups(head).groups
    groups += tuple(group_at(name, ("orders", 0, 400)) for name in STRANGE)
    topics = [msgspec.structs.replace(topic, captured=head.number + 1) for topic in head.topics]
    commit_point(archive, head.number + 1, topics=topics, groups=groups, at=later, znodes=znodes)
    label(store, "3", "before-the-migration")
    age = timedelta(days=15)  # before the newest restore point
    expire(store, Expiry(Policy(last=21), age, timedelta(0)), 60, Silent(), confirm=True)
    pin(store, "20")
    verified_at = now()
    verified = verify(store, "all", True, no_spark, Silent())
    record_verification(store, verified, verified_at, partial=False)
    newest = open_archive(store).restore_points[-1].number
    store_drill(
        store,
        "drill-2026-10-09-00000001",
        result="failed",
        comparison=comparison(ok=False),
        findings=(EVIL, "1 group differs"),
    )
    store_drill(store, "drill-2026-10-16-00000002", result="interrupted", comparison=None)
    store_drill(store, "drill-2026-10-23-00000003", restore_point=newest, comparison=comparison())


_PAGES = f"""
status /status  points /  point /points/9  point-first /points/3
topics /topics  topics-as-of /topics?point=5&sort=losses  topics-search /topics?q=orders
topic /topics/orders  topic-long /topics/{LONG_TOPIC}  topic-odd /topics/odd
partition /topics/orders/1  partition-gaps /topics/compacted/0
together /topics/orders/records  together-odd /topics/odd/records
records /topics/orders/1/records  records-decoded /topics/orders/1/records?view=decoded
records-whole /topics/odd/0/records?view=auto  records-hex /topics/odd/0/records?view=hex
records-lines-odd /topics/odd/0/records  seek-end /topics/orders/1/records?time=2100-01-01T00:00:00Z
record /topics/orders/1/records/300  record-odd /topics/odd/0/records/0
record-hex /topics/odd/0/records/4?view=hex  record-json /topics/odd/0/records/6
search /search  search-matches /search?text=customer-1&where=orders
search-none /search?text=nobody-has-this  search-odd-open /search?text=onerror
search-many /search?text=customer
search-jq-open /search?text=customer&jq=.value.total%3E190  search-bad-jq /search?jq=.value+%7C
groups /groups  lag /groups/lag  group /group?name=billing
group-attack /group?name={quote(ATTACK)}  group-long /group?name={quote(LONG_GROUP)}
restore /restore  restore-range /restore?point=12&range=orders:1:310-350&skip=orders:1:320&group={quote(ATTACK)}
restore-all /restore?point=9&topic=orders&topic=clicks
restore-moment /restore?to_time=2026-10-05T03:00:00Z&map_from=orders&map_to=orders-again
restore-error /restore?topic=nowhere&map_from=orders&map_to=orders-again
growth /growth  diff /diff?a=9&b=12  newest-diff /diff  history /history  mirrors /mirrors  migration /migration
drills /drills  drill /drills/drill-2026-10-09-00000001/page
documents /docs  document /docs/restore  document-wide /docs/comparison
error-not-found /topics/nowhere  error-input /topics/orders/0/records?offset=abc
""".split()
ADDRESSES = dict(zip(_PAGES[::2], _PAGES[1::2], strict=True))
"""Pages by the names of their pictures."""
_LISTS = "points status topics groups lag restore growth newest-diff history drills mirrors search"
LISTS = {name: ADDRESSES[name] for name in _LISTS.split(" ")}
"""Pages that are taken of each archive."""
OF_SCHEMAS = {
    "subjects": "/schemas",
    "subject": "/schema?subject=orders-value",
    "differences": "/schema?subject=orders-value&version=2&before=1",
    "topic": "/topics/orders",
    "records": "/topics/orders/0/records?point=1",
    "record": "/topics/orders/0/records/0?point=1",
}
"""Pages that are taken of an archive with schemas."""

SCREENS = {"wide": (1280, 900), "phone": (390, 844)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
MAX_HEIGHT = 2600
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    stores = [MemoryStore() for _ in range(6)]
    make_shot_archive(stores[0])
    open_or_create(stores[1])
    make_archive(stores[2])
    make_rich(stores[3], nights=102, services=1, each=2)
    java = FileStore(JAVA / "archive")
    for entry in java.list(""):
        topic, _, file = entry.key.partition("/")
        stores[4].put(f"{ATTACK} {STRANGE[1]}/{file}" if topic == "payments" else entry.key, java.get(entry.key))
    kinds = {f"{kind}-": LISTS for kind in ("empty", "two", "hundred", "java")}
    make_schema_archive(stores[5])
    of_kinds = {"": ADDRESSES, **kinds, "schemas-": OF_SCHEMAS}
    taken = 0
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser(), args=FLAGS)
        for store, (kind, addresses) in zip(stores, of_kinds.items(), strict=True):
            chosen = {kind + name: address for name, address in addresses.items()}
            chosen = {name: chosen[name] for name in chosen if name in arguments[1:] or not arguments[1:]}
            with _served(ArchiveCache(store)) as url:
                taken += _take(running, url, chosen, folder)
        running.close()
    print(f"{taken} pictures in {folder}")
    return 0


def _take(running: Browser, url: str, addresses: dict[str, str], folder: Path) -> int:
    """Take the pages in all sizes and colours, and return the number of pictures."""
    for (screen, (width, height)), scheme in product(SCREENS.items(), SCHEMES):
        size: ViewportSize = {"width": width, "height": height}
        context = running.new_context(viewport=size, color_scheme=scheme, has_touch=screen == "phone")
        page = context.new_page()
        for name, address in addresses.items():
            page.goto(url + address)
            page.wait_for_load_state("networkidle")  # a search goes on
            if name.endswith("-open"):
                page.locator(".matches summary").first.click()
            full = int(page.evaluate("document.documentElement.scrollHeight"))
            page.set_viewport_size({"width": width, "height": min(max(full, height), MAX_HEIGHT)})
            page.screenshot(path=folder / f"{name}-{screen}-{scheme}.png")
            page.set_viewport_size(size)
        context.close()
    return len(addresses) * len(SCREENS) * len(SCHEMES)


@contextmanager
def _served(cache: ArchiveCache) -> Iterator[str]:
    """Serve the page on a free port of this machine, without a token."""
    decoder = FieldDecoder(lambda held: Decoding(archived_schemas(held, RegistryOptions()).decoders(), mm2=True))
    app = make_app(cache, Access(frozenset({"localhost"})), partial(command_line, restore), decoder)
    config = uvicorn.Config(app, port=0, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except MissingToolError as error:
        sys.exit(f"error: {error}")
