"""What infra/docs/what-is-in-the-bucket.md says of each object is what happens when that object goes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.errors import CorruptError, NoArchiveError
from kbackup.jobs.listen import Silent
from kbackup.jobs.verify import verify
from kbackup.store import open_store
from kbackup.store.base import Store
from tests.project.docs.documents import ROOT
from tests.support.archives import make_archive

PAGE = (ROOT / "infra" / "docs" / "what-is-in-the-bucket.md").read_text("utf-8")
ROWS: dict[str, str] = dict(
    re.findall(r"^\| `([^`]+/[^`]*|[a-z]+\.json)` \| .* \| ([^|]+) \|$", PAGE, re.MULTILINE)
)
KEYS = [
    "archive.json",
    "topics/orders/segment_partition_000_from_offset_0000000000_records",
    "topics/orders/segment_partition_000_from_offset_0000000000_index",
    "topics/orders/index_partition_000",
    "topics/orders/consumer_offsets_partition_000",
    "backups/0000000001/manifest.json",
    "backups/0000000001/segments.parquet",
    "backups/0000000001/groups.json",
    "backups/0000000001/metadata.json",
    "backups/0000000001/intent.json",
    "backups/0000000002/refreshed.json",
]
"""One of each kind that a backup leaves."""


def row(key: str) -> str:
    """What the page says of a key."""
    for name, fate in ROWS.items():
        pattern = re.escape(name).replace("…", ".+")
        if re.fullmatch(re.sub(r"<\w+>", "[^/]+", pattern), key):
            return fate
    raise AssertionError(f"{key} is not on the page")


def findings(store: Store) -> list[str]:
    """Hints of what `kbackup verify --quick` finds."""

    def no_session() -> None:
        raise AssertionError

    return [found.hint for found in verify(store, "all", True, no_session, Silent()).findings]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bucket") / "archive"
    make_archive(open_store(str(folder)))
    assert findings(open_store(str(folder))) == []
    return folder


@pytest.mark.parametrize("key", KEYS)
def test_what_happens_when_it_goes(key: str, archive: Path, tmp_path: Path) -> None:
    store = open_store(str(shutil.copytree(archive, tmp_path / "archive")))
    assert store.delete([key]) == []
    fate, found = row(key), findings(store)
    if fate.startswith("harmless"):
        assert found == []
    elif fate.startswith("made again"):
        (hint,) = found
        assert "follows from" in hint or "does without it" in hint
    else:
        assert fate.startswith("lost")
        (hint,) = found
        assert "another copy" in hint
    opens = not key.endswith(("archive.json", "manifest.json"))
    try:
        open_archive(store).restore_point("latest")
    except (CorruptError, NoArchiveError):
        assert not opens
    else:
        assert opens


def test_every_kind_of_object_is_on_the_page() -> None:
    roots = {
        value
        for name, value in vars(layout).items()
        if name.isupper() and isinstance(value, str) and (value.endswith("/") or name in ("ARCHIVE", "LOCK"))
    }
    told = {name.partition("/")[0] + ("/" if "/" in name else "") for name in ROWS}
    assert roots <= told
    for part in (
        layout.INTENT,
        layout.MANIFEST,
        layout.SEGMENTS,
        layout.GROUPS,
        layout.METADATA,
        layout.REFRESHED,
    ):
        assert f"backups/<n>/{part}" in ROWS


def test_the_listing_is_in_order_and_told_of() -> None:
    (listing,) = re.findall(r"```\n(archive\.json\n.*?)```", PAGE, re.DOTALL)
    keys = listing.split()
    assert keys == sorted(keys)
    for key in keys:
        if not key.startswith("backups/") or not key.endswith("…"):
            row(key.replace("…", "x"))
