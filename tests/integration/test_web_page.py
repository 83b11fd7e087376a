"""The web page as people meet it: `kbackup ui` as a process of its own, and a real browser that clicks through it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Dialog, FloatRect, Locator, Page, expect, sync_playwright

from kbackup.jobs.adopt import adopt
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from scripts.dev.tools import browser as chromium
from tests.golden.java_archive import ROOT as JAVA
from tests.project.docs.documents import ROOT
from tests.support.drill_reports import comparison, store_drill
from tests.support.repairs import no_spark
from tests.support.rich_archive import ATTACK, LONG, LONG_GROUP, LONG_TOPIC, SCRIPT, make_rich
from tests.support.secrets import make

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
]
PHONE = {"width": 390, "height": 844}
PATIENCE = 30.0
Scheme = Literal["light", "dark"]
VIOLATION = "document.addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str

    def stop(self, by: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code, and what it said on stderr."""
        self.process.send_signal(by)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@contextmanager
def served(archive: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "kbackup", "ui", "--archive", archive, "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": str(ROOT), **(env or {})},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), process.communicate(timeout=PATIENCE)
        yield Served(process, url)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = FileStore(tmp_path_factory.mktemp("rich") / "archive")
    make_rich(store, nights=9, services=2, each=60)
    store_drill(store, "drill-2026-10-16-00000002")
    store_drill(store, DRILL, comparison=comparison(ok=False), result="failed", findings=(ATTACK,))
    return store


@pytest.fixture(scope="module")
def page_url(rich: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(rich.url, "--no-token", cwd=tmp_path_factory.mktemp("ui")) as running:
        yield running.url.rstrip("/")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests here."""
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield running
        running.close()


def watched(context: BrowserContext, host: str) -> list[str]:
    """Everything that must not happen, as it happens: errors, dialogs, broken rules, requests to anywhere else."""
    seen: list[str] = []

    def dialog(shown: Dialog) -> None:
        seen.append(f"dialog: {shown.message}")
        shown.dismiss()

    def note(what: str, text: str, bad: bool = True) -> None:
        if bad:
            seen.append(f"{what}: {text}")

    context.add_init_script(VIOLATION)
    context.on("console", lambda message: note("console", message.text, message.type in ("error", "warning")))
    context.on("weberror", lambda error: note("error", str(error.error)))
    context.on("dialog", dialog)
    context.on("request", lambda request: note("request", request.url, not request.url.startswith(host)))
    return seen


@contextmanager
def opened(browser: Browser, url: str, **how: object) -> Iterator[Page]:
    context = browser.new_context(**how)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE * 1000)
    seen = watched(context, url)
    try:
        yield context.new_page()
        assert seen == []
    finally:
        context.close()


@pytest.fixture
def page(browser: Browser, page_url: str) -> Iterator[Page]:
    with opened(browser, page_url) as opened_page:
        yield opened_page


def no_wider_than_the_screen(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


CUT = """() => [...document.querySelectorAll('main *')].filter(e => {
  const box = e.getBoundingClientRect();
  if (!box.width || e.closest('svg, pre, .hidden')) return false;
  const scrolls = e.matches('.scroll, table') && e.scrollWidth > e.clientWidth;
  return scrolls || box.left < 0 || box.right > innerWidth + 1;
}).map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)"""


def cut_off(page: Page) -> list[str]:
    """Return what a reader must scroll sideways for: tables that are wider than their place, and what leaves the
    screen."""
    return [str(each) for each in page.evaluate(CUT)]


EVERY_PAGE = [
    *("/", "/points/1", "/points/7", "/topics", "/topics?point=2", "/topics/orders", "/topics/odd", "/topics/orders/1"),
    *(f"/topics/odd/0/records?view={view}" for view in ("lines", "auto", "text", "json", "hex")),
    *(f"/topics/odd/0/records/{n}?view={view}" for n in (0, 4, 5, 6) for view in ("auto", "hex")),
    *("/topics/orders/records", "/topics/compacted/0/records?last=1", "/docs", "/docs/web-page"),
    *("/groups", "/groups?point=1", "/groups/lag", "/group?name=billing"),
    *("/status", "/restore", "/restore?point=3&topic=orders&range=", "/search", "/search?text=customer", "/history"),
    *("/search?text=onerror", "/search?text=customer-1&jq=.value.total%3E190", "/search?text=nobody-has-this"),
    *("/drills", "/growth", "/mirrors", "/migration", "/diff", "/diff?a=1&b=7"),
]

DRILL = "drill-2026-10-09-2813394e"
OTHER_PAGES = [
    *("/topics/nowhere", "/nowhere", "/restore?topic=nowhere", "/topics/orders/0/records?offset=abc", "/static/none"),
    *("/search?jq=.value+%7C", "/search?text=a&where=nowhere"),
    *(
        "/restore?skip=orders:9:1&skip=orders:0:2",
        "/restore?where=.(&map_from=orders&map_to=x",
        "/restore?to_time=soon",
    ),
    f"/drills/{DRILL}/page",
    "/drills/drill-2026-10-16-00000002/page",
]
JAVA_PAGES = [
    "/",
    "/topics",
    "/topics/orders.v1",
    "/topics/orders.v1/0/records",
    "/groups",
    "/restore",
    "/search",
    "/status",
]


@pytest.mark.parametrize(
    "how",
    [{"viewport": {"width": 1280, "height": 900}}, {"viewport": PHONE, "color_scheme": "dark", "has_touch": True}],
    ids=["wide", "phone"],
)
def test_every_page_on_every_screen(browser: Browser, page_url: str, how: dict[str, object]) -> None:
    with opened(browser, page_url, **how) as page:
        for address in EVERY_PAGE:
            answer = page.goto(page_url + address)
            assert answer is not None
            assert answer.ok, address
            assert no_wider_than_the_screen(page), address
            assert cut_off(page) == [], address
            assert page.locator("main h1").count() == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_a_late_restore_point_is_marked_beside_the_chart(browser: Browser, page_url: str, width: int) -> None:
    with opened(browser, page_url, viewport={"width": width, "height": 900}) as page:
        page.goto(page_url)
        chart = page.locator(".timeline svg[role=group]")
        (late,) = (box(mark) for mark in chart.locator("rect.gap").all())
        legend = box(page.locator(".timeline figcaption"))
        assert late["width"] >= 4, "wide enough to be seen"
        points = chart.locator("rect.column, rect.there, rect.over").all()
        assert len(points) >= 7
        for point in map(box, points):
            assert not overlap(late, point)
            assert not overlap(legend, point)


@pytest.fixture(scope="module")
def more_pages(rich: Store, page_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Addresses of pages without a token, under an unknown host, and of a folder of the Java tool, adopted or not."""
    folder = tmp_path_factory.mktemp("java")
    shutil.copytree(JAVA / "archive", folder / "java")
    adopted = FileStore(shutil.copytree(JAVA / "archive", folder / "adopted"))
    adopt(adopted, True, 60, no_spark, Silent())
    with (
        served(rich.url, cwd=folder) as locked,
        served(str(folder / "java"), "--no-token", cwd=folder) as java,
        served(adopted.url, "--no-token", cwd=folder) as archive,
    ):
        yield [
            *(locked.url.partition("?")[0], page_url.replace("127.0.0.1", "evil.example")),
            *(server.url.rstrip("/") + address for server in (java, archive) for address in JAVA_PAGES),
        ]


Look = tuple[Scheme, int]
WIDE: Look = ("light", 1280)
NARROW: Look = ("dark", 390)


@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["light-1280", "dark-390"])
def test_no_page_has_a_serious_barrier(browser: Browser, page_url: str, more_pages: list[str], look: Look) -> None:
    """Each page in one of the two looks, by turns: its template and its neighbours are in both."""
    addresses = [page_url + address for address in (*EVERY_PAGE, *OTHER_PAGES)] + more_pages
    first = (WIDE, NARROW).index(look)
    check_barriers(browser, addresses[first::2], look)


@pytest.mark.soak
@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["light-1280", "dark-390"])
def test_no_page_has_a_serious_barrier_in_any_look(
    browser: Browser, page_url: str, more_pages: list[str], look: Look
) -> None:
    addresses = [page_url + address for address in (*EVERY_PAGE, *OTHER_PAGES)] + more_pages
    check_barriers(browser, addresses, look)


def check_barriers(browser: Browser, addresses: list[str], look: Look) -> None:
    """Check pages by the rules of axe-core, for people who see little, see no colours, or hear the page."""
    found: list[str] = []
    axe = Axe()
    scheme, width = look
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    for address in addresses:
        page.goto(address)
        if page.locator(".matches summary").count():
            page.locator(".matches summary").first.click()
        seen = axe.run(page).response
        assert seen["passes"], address
        found += [
            f"{address}: {finding['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for finding in seen["violations"]
            if finding["impact"] in ("serious", "critical")
            for node in finding["nodes"]
        ]
        assert no_wider_than_the_screen(page), address
    page.close()
    assert found == []


def test_losses_are_seen_on_a_phone(browser: Browser, page_url: str) -> None:
    """Without scrolling sideways, as is the whole banner."""
    with opened(browser, page_url, viewport=PHONE, has_touch=True) as page:
        for address in ("/", "/topics?sort=losses"):
            page.goto(page_url + address)
            badge = page.locator("td .tag.bad, th .tag.bad").filter(has_text="loss").first
            for seen in (badge, page.locator(".verdict"), page.locator("header nav a").last):
                at = box(seen)
                assert 0 <= at["x"] < at["x"] + at["width"] <= PHONE["width"], (address, at)
            expect(badge).to_be_visible()


def test_topics_to_restore_are_filtered(browser: Browser, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    make_rich(store, nights=1, services=40, each=1)
    with served(store.url, "--no-token", cwd=tmp_path) as running, opened(browser, running.url.rstrip("/")) as page:
        page.goto(f"{running.url}restore")
        page.get_by_role("checkbox", name="service-07.events").check()
        page.get_by_label("Show topics with").fill("EVENTS 03")
        expect(page.locator(".ticks-of label:visible")).to_have_count(1)
        page.get_by_role("checkbox", name="service-03.events").check()
        page.get_by_role("button", name="Compute").click()
        expect(page.locator(".command pre").first).to_contain_text(
            "--topic service-03.events --topic service-07.events"
        )


def box(locator: Locator) -> FloatRect:
    found = locator.bounding_box()
    assert found is not None
    return found


def overlap(a: FloatRect, b: FloatRect) -> bool:
    beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
    above = a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
    return not beside and not above


SELECTED = "e => { const s = getSelection(); s.selectAllChildren(e); return s.toString(); }"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("/topics", LONG_TOPIC),
        ("/growth", LONG_TOPIC),
        ("/diff?a=1&b=7", LONG_TOPIC),
        ("/groups", LONG_GROUP),
        (f"/topics/{LONG_TOPIC}/0", LONG_TOPIC),
    ],
)
def test_long_names_lose_their_middle(browser: Browser, page_url: str, address: str, name: str) -> None:
    """On the screen alone: the columns beside them stay in sight, a copy has every character."""
    with opened(browser, page_url, viewport={"width": 1400, "height": 900}) as page:
        page.goto(page_url + address)
        for table in page.locator(".scroll").all():
            assert table.evaluate("e => e.scrollWidth <= e.clientWidth")
        link = page.get_by_role("link", name=name, exact=True).first
        assert box(link)["width"] < 500
        assert link.locator(".long").get_attribute("title") == name
        assert link.evaluate(SELECTED) == name
        ending = link.locator(".long").evaluate("e => e.lastChild.data")
        assert name.removesuffix(ending) != name


@pytest.mark.parametrize("width", [1400, 390])
def test_charts_have_axes(browser: Browser, page_url: str, width: int) -> None:
    with opened(browser, page_url, viewport={"width": width, "height": 900}) as page:
        page.goto(f"{page_url}/growth")
        chart = page.locator("figure.chart").first
        levels = chart.locator(".levels text").all_text_contents()
        assert levels[0] == "0 B"
        assert len(levels) >= 3
        expect(chart.locator("figcaption")).to_contain_text("now")
        expect(page.locator("figure.chart figcaption").nth(3)).to_contain_text("longest")
        frame = box(chart)
        labels = [box(label) for label in chart.locator("text").all() if label.is_visible()]
        assert all(frame["x"] <= at["x"] <= at["x"] + at["width"] <= frame["x"] + frame["width"] for at in labels)
        dates = [box(label) for label in chart.locator(".axis text").all() if label.is_visible()]
        assert all(a["x"] + a["width"] < b["x"] for a, b in pairwise(dates))


def test_values_come_first_on_a_phone(browser: Browser, page_url: str) -> None:
    with opened(browser, page_url, viewport=PHONE, has_touch=True) as page:
        page.goto(f"{page_url}/topics/orders/1/records/105")
        assert box(page.locator("pre.value").nth(1))["y"] < box(page.locator("dl.facts"))["y"]
        for tab in page.get_by_role("navigation", name="Main").get_by_role("link").all():
            at = box(tab)
            assert 0 <= at["x"] <= at["x"] + at["width"] <= PHONE["width"]
        page.goto(f"{page_url}/topics/orders/1/records")
        row = page.locator("table.records tbody tr").first
        value, time_ = box(row.locator(".val")), box(row.locator(".time"))
        assert value["x"] + value["width"] <= PHONE["width"]
        assert value["y"] < time_["y"]
        # Above it stand the archive, the documents to read, and how to move: it is on the first screen all the same.
        assert value["y"] < PHONE["height"] * 0.6
        page.get_by_role("link", name="Differences").tap()
        expect(page.get_by_role("heading", name="Differences between two restore points")).to_be_visible()


def test_a_search_leads_to_records(page: Page, page_url: str) -> None:
    page.goto(f"{page_url}/topics/orders")
    page.get_by_role("link", name="Search its records").click()
    page.get_by_label("Text").fill("customer-1")
    page.get_by_label("value", exact=True).uncheck()
    page.get_by_role("button", name="Search").click()
    expect(page.locator("table.matches tbody")).to_have_count(161)
    expect(page.get_by_role("status").filter(has_text="that is all")).to_contain_text("161 records found")
    row = page.locator("table.matches tbody").first
    expect(row.locator(".key mark")).to_have_text("customer-1")
    record = row.get_by_role("link", name="Record")
    expect(record).to_be_hidden()
    row.locator("summary").press("Enter")
    expect(record).to_be_visible()
    row.locator(".val").first.click()
    expect(record).to_be_hidden()
    row.locator("summary").click()
    record.click()
    expect(page.locator("pre.value").first).to_contain_text("customer-1")


def test_a_search_rests_while_its_tab_is_hidden(page: Page, page_url: str) -> None:
    """Without JavaScript, and in a tab out of sight, a link goes on."""
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.isHidden ?? true })")
    page.goto(f"{page_url}/search?text=customer")
    page.wait_for_load_state("networkidle")
    expect(page.locator("table.matches tbody")).to_have_count(50)
    page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("table.matches tbody")).to_have_count(200)


def test_the_page_of_a_drill_has_its_own_styles(page: Page, page_url: str) -> None:
    page.goto(f"{page_url}/drills")
    page.get_by_role("link", name="Open its report").click()
    expect(page.locator(".result b")).to_have_css("text-transform", "uppercase")
    expect(page.get_by_text(ATTACK)).to_be_visible()


def test_links_lead_from_restore_points_to_a_record_and_back(page: Page, page_url: str) -> None:
    """From the restore points down to a record and back, by what stands on the pages."""
    page.goto(page_url)
    expect(page.get_by_role("heading", name="Restore points")).to_be_visible()
    expect(page.locator(".timeline rect.gap")).to_have_count(1)
    page.get_by_role("link", name="7", exact=True).click()
    expect(page.get_by_role("heading", name="Restore point 7")).to_be_visible()
    page.get_by_role("link", name="What changed").click()
    expect(page.get_by_text("from restore point 6 to restore point 7")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="← 6").click()
    page.get_by_role("link", name="Topics as of then").click()
    expect(page.get_by_text("as of restore point 6")).to_be_visible()
    page.get_by_role("link", name="go to the newest").click()
    expect(page.get_by_text("as of restore point")).to_have_count(0)
    page.get_by_role("link", name="orders", exact=True).click()
    page.locator("table.rows tbody th a").nth(1).click()
    expect(page.get_by_role("heading", name="Partition 1")).to_be_visible()
    jump = page.get_by_role("textbox", name="offset")
    jump.fill("100")
    jump.press("Enter")
    expect(page.locator("tr:target th")).to_have_text("100")
    page.get_by_role("link", name="later →").first.click()
    page.get_by_role("link", name="← earlier").first.click()
    page.get_by_role("link", name="105", exact=True).click()
    expect(page.get_by_role("heading", name="Record 105")).to_be_visible()
    expect(page.locator("pre.json .j-name").first).to_have_text('"order"')
    page.get_by_role("link", name="Hex", exact=True).click()
    expect(page.locator("pre.hex").first).to_contain_text("00000000")
    page.get_by_role("link", name="next →").click()
    expect(page.get_by_role("heading", name="Record 106")).to_be_visible()
    page.get_by_role("link", name="Groups", exact=True).click()
    page.get_by_role("link", name="shipping").click()
    expect(page.locator("td.strip path.mark")).to_have_count(4)
    page.get_by_role("link", name="Growth").click()
    expect(page.locator("figure.chart path.line").first).to_be_visible()


def test_hostile_names_and_values_are_text(page: Page, page_url: str) -> None:
    """No dialog comes up, no script runs, no image is asked for: `opened` sees to that."""
    page.goto(f"{page_url}/topics/odd/0/records/0")
    expect(page.locator("pre.value").first).to_have_text(ATTACK)
    expect(page.locator("pre.value").nth(1)).to_have_text(SCRIPT)
    expect(page.locator("table.headers th.mono").first).to_have_text(SCRIPT)
    page.goto(f"{page_url}/groups?point=1")
    for name in (ATTACK, '"><script>alert(2)</script>', "a/b?c=d&e#f"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("h1")).to_have_text(name)
        page.go_back()
    expect(page.get_by_text(f"{ATTACK} not carried: {SCRIPT}")).to_be_visible()
    page.goto(page_url)
    expect(page.locator(".notes.bad li").first).to_contain_text(ATTACK)
    page.goto(f"{page_url}/topics")
    page.get_by_label("Search topics").fill(SCRIPT)
    expect(page.locator("#results")).to_contain_text(SCRIPT)


def test_injected_scripts_do_not_run(browser: Browser, page_url: str) -> None:
    """The content security policy holds even if all escaping fails."""
    context = browser.new_context()
    page = context.new_page()
    seen = watched(context, page_url)
    page.goto(page_url)
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=/x onerror=alert(1)><b style=\"x:y\">b</b>')"
    )
    page.evaluate("const s = document.createElement('script'); s.textContent = 'alert(2)'; document.body.append(s)")
    page.evaluate(  # to wait for a function would take the eval that the policy forbids
        "new Promise(done => document.images[0].complete ? done() : document.images[0].addEventListener('error', done))"
    )
    assert not [text for text in seen if text.startswith(("dialog", "error"))]
    assert len([text for text in seen if "policy: script-src" in text]) == 2
    context.close()


def test_pages_are_reached_by_the_keyboard(page: Page, page_url: str) -> None:
    page.goto(page_url)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search topics")).to_be_focused()
    page.keyboard.type("ord")
    expect(page.locator("#results tbody tr")).to_have_count(1)
    assert page.url.endswith("?q=ord"), "what is shown is what the address says"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("orders")
    for key in ("j", "j", "k", "ArrowDown"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Partition 1")
    page.goto(f"{page_url}/topics/orders/1/records?n=20")
    page.keyboard.press("n")
    expect(page.locator("tbody th").first).to_have_text("20")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("tbody th").first).to_have_text("0")
    page.keyboard.press("u")
    expect(page.locator("h1")).to_have_text("Partition 1")


def test_pages_are_light_or_dark_as_the_browser_asks(browser: Browser, page_url: str) -> None:
    def brightness(page: Page) -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    with opened(browser, page_url, color_scheme="dark") as page:
        page.goto(page_url)
        assert brightness(page) < 150, "as the system has it"
        page.get_by_role("button", name="Light or dark").click()
        assert brightness(page) > 600
        page.goto(f"{page_url}/topics")
        assert brightness(page) > 600, "as it was chosen"
        page.keyboard.press("l")
        assert brightness(page) < 150


def test_what_is_clicked_is_copied_exactly(browser: Browser, page_url: str) -> None:
    """Numbers, keys and values exactly; names and commands without control characters and marks; nothing but text."""
    with opened(browser, page_url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"{page_url}/topics/orders")
        size = page.locator("dd data[title$=' bytes']").first
        size.click()
        exact = size.get_attribute("value")
        expect(page.get_by_role("status")).to_have_text(f"copied {exact}")
        assert page.evaluate("navigator.clipboard.readText()") == exact
        assert exact is not None
        assert exact.isdecimal()
        page.locator("tbody time").first.click()
        assert re.fullmatch(r"[-0-9T:]{19}\.\d{3}Z", page.evaluate("navigator.clipboard.readText()"))

        def copied(button: Locator) -> str:
            page.evaluate("navigator.clipboard.writeText('')")
            page.evaluate("document.querySelector('#said').textContent = ''")
            button.click()
            expect(page.get_by_role("status")).to_contain_text("copied")
            return str(page.evaluate("navigator.clipboard.readText()"))

        for name, shown in ((ATTACK, ATTACK), ("gro\u202eup", r"gro\u202eup"), (LONG_GROUP, LONG_GROUP)):
            page.goto(f"{page_url}/group?{urlencode({'name': name})}")
            assert copied(page.locator(".title .copy")) == shown
        page.goto(f"{page_url}/topics/orders/1/records/105")
        assert copied(page.locator(".title .copy")) == "orders:1:105"
        page.goto(f"{page_url}/topics/odd/0/records/3")
        fields = page.locator("section.field .copy")
        assert copied(fields.first) == "grüße 日本 🎉"
        assert copied(fields.nth(1)) == "zwei\nZeilen\tund\rmehr\x1b[31m"
        page.goto(f"{page_url}/topics/odd/0/records/5")
        assert copied(fields.nth(1)) == LONG.decode(), "all of it, not what is shown"
        page.goto(f"{page_url}/topics/odd/0/records/4")
        fields.nth(1).click()
        expect(page.get_by_role("status")).to_have_text("not text: download it")
        page.goto(f"{page_url}/restore?topic=orders")
        assert copied(page.locator(".command .copy").first) == page.locator(".command pre").first.inner_text()


def test_a_long_value_is_downloaded_whole(page: Page, page_url: str) -> None:
    page.goto(f"{page_url}/topics/odd/0/records/5")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="download all of it").click()
    assert waiting.value.suggested_filename == "odd-0-5-value.bin"
    assert Path(waiting.value.path()).read_bytes() == LONG


def test_pages_work_without_scripts(browser: Browser, page_url: str) -> None:
    with opened(browser, page_url, java_script_enabled=False) as page:
        page.goto(f"{page_url}/topics")
        page.get_by_label("Search topics").fill("odd")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="odd", exact=True).click()
        page.get_by_role("link", name="records", exact=True).click()
        expect(page.locator("table.records tbody tr")).to_have_count(12)


def test_a_restore_is_planned_without_scripts(browser: Browser, page_url: str) -> None:
    """On a phone: from a record to the command, with another name and without groups."""
    with opened(browser, page_url, java_script_enabled=False, viewport=PHONE, has_touch=True) as page:
        page.goto(f"{page_url}/topics/orders/1/records/105")
        page.get_by_role("link", name="Restore this…").tap()
        commands = page.locator(".command pre")
        expect(commands.first).to_contain_text("--dry-run")
        expect(commands.first).to_contain_text("--restore-point 7 --range orders:1:105")
        page.get_by_label("New name of orders").fill("orders-again")
        page.get_by_label("restore no groups").check()
        page.get_by_role("button", name="Compute").tap()
        expect(commands.nth(1)).to_contain_text(
            "--restore-point 7 --range orders:1:105 --map orders=orders-again --no-groups"
        )
        expect(page.locator("dl.facts").get_by_text("at most")).to_have_count(2)
        assert no_wider_than_the_screen(page)
        expect(page.get_by_role("button", name="copy")).to_have_count(0)


def test_topics_of_a_java_folder(browser: Browser, tmp_path: Path) -> None:
    """Their names are those of folders: anything but a slash."""
    source, store = FileStore(JAVA / "archive"), FileStore(tmp_path / "archive")
    name = f"{ATTACK} ?#%2F&"
    topic = next(iter(source.list_dirs()))
    for entry in source.list(f"{topic}/"):
        store.put(f"{name}/{entry.key.rpartition('/')[2]}", source.get(entry.key))
    with served(store.url, "--no-token", cwd=tmp_path) as running, opened(browser, running.url.rstrip("/")) as page:
        page.goto(f"{running.url}topics")
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("h1")).to_have_text(name)
        page.get_by_role("link", name="records", exact=True).first.click()
        expect(page.get_by_role("heading", name="Records")).to_be_visible()
        page.locator("table.records tbody th a").first.click()
        expect(page.locator("section.field")).to_have_count(2)


def test_a_token_opens_the_pages_and_is_never_shown(browser: Browser, rich: Store, tmp_path: Path) -> None:
    """By the address, by the form, and not in what the process says."""
    token = make("the web page's token")
    with served(rich.url, "-v", "-v", cwd=tmp_path, env={"KBACKUP_UI_TOKEN": token}) as running:
        assert token not in running.url
        for way in ("address", "form"):
            context = browser.new_context()
            page = context.new_page()
            if way == "address":
                page.goto(f"{running.url}topics?token={token}")
                expect(page.get_by_role("heading", name="Topics")).to_be_visible()
                assert page.url == f"{running.url}topics"
            else:
                page.goto(running.url)
                page.get_by_label("Token").fill(token)
                with page.expect_request(lambda request: request.method == "POST") as sent:
                    page.get_by_role("button", name="Open").click()
                expect(page.get_by_role("heading", name="Restore points")).to_be_visible()
                assert token not in sent.value.url + page.url, "nor in a history or a proxy's log"
            (cookie,) = context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"], token in cookie["value"]) == (True, "Strict", False)
            page.get_by_role("link", name="Groups", exact=True).click()
            expect(page.get_by_role("heading", name="Consumer groups")).to_be_visible()
            page.goto(f"{running.url}drills/{DRILL}/page")
            page.get_by_role("link", name="Drills and verifications").click()
            expect(page.get_by_role("heading", name="Drills and verifications")).to_be_visible()
            page.goto(f"{running.url}nowhere")
            page.get_by_role("button", name="Back").click()
            expect(page.get_by_role("heading", name="Drills and verifications")).to_be_visible()
            context.close()
        code, said = running.stop()
    assert code == 0
    assert token not in said


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_server_ends_on_a_signal(rich: Store, tmp_path: Path, by: signal.Signals) -> None:
    """Also while a browser keeps a connection open."""
    with served(rich.url, cwd=tmp_path) as running:
        kept = urllib.request.urlopen(running.url)
        began = time.monotonic()
        code, said = running.stop(by)
        kept.close()
    assert code == 0, said
    assert time.monotonic() - began < 15
    assert "Traceback" not in said


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


def kbackup_ui(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "kbackup", "ui", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": str(ROOT), **(env or {})},
        timeout=PATIENCE * 2,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
def test_every_address_asks_for_a_token(rich: Store, tmp_path: Path, listen: str) -> None:
    """On loopback as well, where the server makes one: other accounts of this machine reach it."""
    own = {} if listen.startswith("127") else {"KBACKUP_UI_TOKEN": make("the web page's token")}
    with served(rich.url, "--listen", listen, cwd=tmp_path, env=own) as running:
        address, _, made = running.url.partition("/?token=")
        token = made or own["KBACKUP_UI_TOKEN"]
        assert len(made) >= 32 or own
        here = f"http://127.0.0.1:{address.rstrip('/').rpartition(':')[2]}/topics"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(here)
        asked = urllib.request.Request(here, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200
        code, said = running.stop()
    assert (code, token in said) == (0, False)
    assert ("without TLS" in said) == listen.startswith("0")


def test_no_token_is_for_who_wants_it(rich: Store, tmp_path: Path) -> None:
    own = {"KBACKUP_UI_TOKEN": make("the web page's token")}
    with served(rich.url, "--no-token", cwd=tmp_path, env=own) as running:
        with urllib.request.urlopen(f"{running.url}topics") as answer:
            assert answer.status == 200
        _, said = running.stop()
    assert "everybody on this machine sees every record" in said


def test_unusable_options_and_hosts_are_refused(rich: Store, tmp_path: Path) -> None:
    assert kbackup_ui("-a", str(tmp_path / "nowhere"), "--listen", ":0", cwd=tmp_path).code == 10
    short = kbackup_ui("-a", rich.url, "--listen", ":0", cwd=tmp_path, env={"KBACKUP_UI_TOKEN": "short"})
    assert short.code == 2
    assert "fewer than 16 characters" in short.err
    assert "short" not in short.err.replace("shorter", ""), "the token is not shown"
    with served(rich.url, "--no-token", cwd=tmp_path) as running:
        port = running.url.rstrip("/").rpartition(":")[2]
        taken = kbackup_ui("-a", rich.url, "--listen", f"127.0.0.1:{port}", "--json", cwd=tmp_path)
        assert taken.code == 2
        assert "address already in use" in taken.err
        assert json.loads(taken.out)["error"]["exit_code"] == 2
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(urllib.request.Request(running.url, headers={"Host": "evil.example.com"}))
