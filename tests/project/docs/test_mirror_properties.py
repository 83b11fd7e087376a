"""The page on the properties file of a mirror has every key, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from kbackup.jobs.mirror.properties.keys import FLOW_KEYS, OWN_KEYS

PAGE = Path(__file__).parents[3] / "infra/docs/mirror-properties.md"


def test_every_key_is_on_the_page_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z.-]+)` \| (?:`([^`]*)`)? ?\|", PAGE.read_text(), re.MULTILINE))
    keys = FLOW_KEYS | OWN_KEYS
    assert {name: rows.get(name) for name in keys} == {name: key.default for name, key in keys.items()}
