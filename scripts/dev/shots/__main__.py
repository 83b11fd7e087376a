"""Take screenshots of every page: python -m scripts.dev.shots FOLDER [NAME...]

Each page is taken wide and on a phone, light and dark, of an archive in memory. NAME limits the pages.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from kbackup.cli.common.command_line import command_line
from kbackup.cli.restore import command as restore
from kbackup.web.app import make_app
from kbackup.web.archive_cache import ArchiveCache
from kbackup.web.guard import Access
from scripts.dev.shots.addresses import ADDRESSES
from scripts.dev.shots.archive import make_shot_archive
from scripts.dev.tools import MissingToolError, browser
from tests.support.memory_store import MemoryStore

SCREENS = {"wide": (1400, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
MAX_HEIGHT = 2600
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    addresses = {name: ADDRESSES[name] for name in arguments[1:]} or ADDRESSES
    store = MemoryStore()
    make_shot_archive(store)
    with _served(ArchiveCache(store)) as url, sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser(), args=FLAGS)
        for screen, scheme in product(SCREENS, SCHEMES):
            _take(running, url, addresses, folder, screen, scheme)
        running.close()
    print(f"{len(addresses) * len(SCREENS) * len(SCHEMES)} pictures in {folder}")
    return 0


def _take(
    running: Browser, url: str, addresses: Mapping[str, str], folder: Path, screen: str, scheme: str
) -> None:
    width, height = SCREENS[screen]
    context = running.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=screen == "phone",
    )
    page = context.new_page()
    for name, address in addresses.items():
        page.goto(url + address)
        full = int(page.evaluate("document.documentElement.scrollHeight"))
        page.set_viewport_size({"width": width, "height": min(max(full, height), MAX_HEIGHT)})
        page.screenshot(path=folder / f"{name}-{screen}-{scheme}.png")
        page.set_viewport_size({"width": width, "height": height})
    context.close()


@contextmanager
def _served(cache: ArchiveCache) -> Iterator[str]:
    """Serve the page on a free port of this machine, without a token."""
    app = make_app(cache, Access(frozenset({"localhost"})), partial(command_line, restore))
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
