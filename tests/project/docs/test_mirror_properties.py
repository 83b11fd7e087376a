"""The documents have every key of a mirror's properties file, and its own defaults of the configuration."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from kbackup.config import KEYS
from kbackup.config.keys import show_value
from kbackup.config.models import Follow
from kbackup.jobs.mirror.halves.take import INTERVAL_SECONDS, rhythm_of
from kbackup.jobs.mirror.properties.load import FLOW_KEYS, OWN_KEYS

DOCS = Path(__file__).parents[3] / "infra/docs"
PAGE = DOCS / "mirror-properties.md"
CONFIGURATION = DOCS / "configuration.md"


def test_every_key_is_on_the_page_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z.-]+)` \| (?:`([^`]*)`)? ?\|", PAGE.read_text(), re.MULTILINE))
    keys = FLOW_KEYS | OWN_KEYS
    assert {name: rows.get(name) for name in keys} == {name: key.default for name, key in keys.items()}


def test_a_mirrors_own_defaults_are_in_the_configuration() -> None:
    section = CONFIGURATION.read_text().partition("\n## Defaults of a mirror\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (.*) \|$", section, re.MULTILINE))
    follow = {path: KEYS[path].default for path in KEYS if path.startswith("follow.")}
    own = {
        path: value for path, value in values_of(rhythm_of(Follow(), follow)).items() if value != follow[path]
    }
    assert rows.keys() == own.keys()
    assert (
        rows["follow.interval_seconds"]
        == f"`{show_value(KEYS['follow.interval_seconds'], INTERVAL_SECONDS)}`"
    )
    assert rows["follow.max_age_seconds"] == "what `follow.interval_seconds` is"
    assert rows["follow.small_bytes"] == "`0`, unless `follow.max_age_seconds` is set"
    assert own["follow.small_bytes"] == 0
    given = Follow(interval_seconds=7, max_age_seconds=9)
    others = follow.keys() - {"follow.interval_seconds", "follow.max_age_seconds"}
    assert rhythm_of(given, others) == given
    assert rhythm_of(given, others | {"follow.max_age_seconds"}).max_age_seconds == 7


def values_of(follow: Follow) -> dict[str, object]:
    return {f"follow.{name}": value for name, value in msgspec.structs.asdict(follow).items()}


def test_the_configuration_says_that_flows_move_with_restore_state() -> None:
    assert "and of mirrors' state" in KEYS["restore.state"].doc
