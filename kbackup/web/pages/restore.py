"""The page that plans a restore: it writes the command and shows its plan, and restores nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import HTMLResponse

from kbackup.archive.query.selection import exact_entry
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config import KEYS
from kbackup.config.models import Restore
from kbackup.config.values import convert, escape_references
from kbackup.errors import KbackupError, RefusedError, UsageError
from kbackup.util.text import kbackup_command
from kbackup.util.times import time_text
from kbackup.web.view import GET, BadInputError, PageRequest, Requested, moment

router = APIRouter(default_response_class=HTMLResponse)

RENAMED = 50
"""Number of topics and of groups that the page lists, each with a field of its new name."""
FILTERED = 30
"""Number of topics to tick from which on the list scrolls, and has a field that filters it."""
OFFERED = 500
"""Number of names that an input field offers, and of topics to tick; others are entered."""


class RestoreForm(BaseModel):
    """The fields of the form. `map_from` and `map_to` are the two sides of the new names of topics, and empty if a
    topic keeps its name; `map_group_from` and `map_group_to` likewise for groups."""

    to_time: str = ""
    from_time: str = ""
    topic: list[str] = []
    exclude_topic: list[str] = []
    range: list[str] = []
    skip: list[str] = []
    where: str = ""
    map_regex: list[str] = []
    group: list[str] = []
    exclude_group: list[str] = []
    no_groups: bool = False
    same_offsets: bool = False
    map_from: list[str] = []
    map_to: list[str] = []
    map_group_from: list[str] = []
    map_group_to: list[str] = []

    @property
    def topic_names(self) -> dict[str, str]:
        return _renamed(self.map_from, self.map_to)

    @property
    def group_names(self) -> dict[str, str]:
        return _renamed(self.map_group_from, self.map_group_to)

    def settings(self, restore_point: int | str) -> dict[str, object]:
        """Return what the command sets, values by path of the key, without defaults. Times are absolute."""
        from_time = _absolute("--from-time", self.from_time, up=True)
        to_time = _absolute("--to-time", self.to_time)
        given: dict[str, object] = {
            "restore.restore_point": restore_point,
            "restore.from_time": from_time,
            "restore.to_time": to_time,
            "restore.range": _entries(self.range),
            "restore.skip": _entries(self.skip),
            "restore.where": self.where.strip(),
            "restore.topics": _patterns(self.topic),
            "restore.exclude_topics": _patterns(self.exclude_topic),
            "restore.map": self.topic_names,
            "restore.map_regex": _entries(self.map_regex),
            "restore.no_groups": self.no_groups,
            "restore.same_offsets": self.same_offsets,
        }
        # Browsers send the fields of groups all the same when groups are to be left alone.
        if not self.no_groups:
            given["restore.groups"] = _patterns(self.group)
            given["restore.exclude_groups"] = _patterns(self.exclude_group)
            given["restore.map_group"] = self.group_names
        settings: dict[str, object] = {}
        for path, value in given.items():
            if value and value != KEYS[path].default:
                settings[path] = value
        return settings


@router.api_route("/restore", methods=GET)
def restore(request: Requested, form: Annotated[RestoreForm, Query()]) -> HTMLResponse:
    """Show the form, the commands, and the plan of the restore; or why there is no such restore."""
    plan: RestorePlan | None = None
    warnings: list[str] = []
    commands: list[str] = []
    error: KbackupError | None = None
    try:
        settings = form.settings(_restore_point(request, form))
        plan, warnings = _plan(request, settings)
        # With an id, the same command resumes the restore after an interruption.
        settings = {"archive": request.cache.store.url, **settings, "restore.restore_id": plan.restore_id}
        dry_run = request.restore_command(settings, "--dry-run")
        commands = [dry_run, request.restore_command(settings), _verify_command(request.cache.store.url, plan)]
    except (UsageError, RefusedError) as refused:
        plan, error = None, refused
    wrong = _field_of(error) if error is not None else ""
    numbers = [point.number for point in request.cache.points()]
    response = request.page(
        "restore.html",
        "restore",
        form=form,
        plan=plan,
        warnings=warnings,
        commands=commands,
        error=error,
        wrong=wrong,
        numbers=numbers,
        topics=_offered(request.snapshot.topics),
        groups=_offered(request.snapshot.by_group),
        most=RENAMED,
        filtered=FILTERED,
        of=len(request.snapshot.topics),
    )
    response.status_code = 200 if error is None else 400
    return response


def _verify_command(archive: str, plan: RestorePlan) -> str:
    """Return the command that compares what the restore of `plan` wrote with the archive."""
    words = ["verify", "--archive", escape_references(archive), "--against", "target", "--restore-id", plan.restore_id]
    # A restore without groups sets none that could be compared.
    if plan.groups:
        words.append("--groups")
    return kbackup_command(*words)


def _restore_point(request: PageRequest, form: RestoreForm) -> int | str:
    """Return the restore point for the command."""
    # A time selects its restore point by itself, unless the page shows another one than the newest.
    if form.to_time.strip() and request.point_name == "latest":
        return "latest"
    # By its number: a newer restore point may come before the command runs.
    return request.snapshot.number or "latest"


def _plan(request: PageRequest, settings: dict[str, object]) -> tuple[RestorePlan, list[str]]:
    """Return the plan of `kbackup restore` with these settings, without a target, and its warnings."""
    from kbackup.jobs.restore.plan import plan_restore, select_content
    from kbackup.jobs.restore.request import RestoreRequest

    checked: dict[str, object] = {}
    for path, value in settings.items():
        _, _, option = path.partition(".")
        checked[option] = convert(KEYS[path], value, "the form")
    restore_request = RestoreRequest.of(msgspec.convert(checked, Restore))
    content = select_content(restore_request, request.cache.store, request.snapshot.archive)
    plan = plan_restore(restore_request, content, "")
    warnings: list[str] = []
    if plan.choice is not None:
        warnings += plan.choice.left_out
    warnings += plan.group_warnings
    warnings += content.warnings
    return plan, warnings


_FIELD = re.compile(r"(?:--|restore\.)([a-z]+(?:[-_][a-z]+)*)|\bno (topic|group)\b|leave out every (topic|group)\b")


def _field_of(error: KbackupError) -> str:
    """Return the name of the field that an error is about; '' if the message names none, or new names in the tables."""
    if "is before the archive begins" in error.message:
        return "to_time"
    found = _FIELD.search(error.message)
    if found is None:
        return ""
    option, kind, every = found.groups("")
    name = option.replace("-", "_") or kind or f"exclude_{every}"
    # Settings of several values have names in the plural; the fields of the form are named as the options are.
    for field in (name, name.removesuffix("s")):
        if field in RestoreForm.model_fields:
            return field
    return ""


def _renamed(old: list[str], new: list[str]) -> dict[str, str]:
    """Return new names by old ones, which are percent-encoded: browsers change line ends in fields."""
    renamed = {}
    for name, target in zip(old, new, strict=False):
        if target.strip():
            renamed[unquote(name)] = target.strip()
    return renamed


def _entries(values: list[str]) -> list[str]:
    return [value.strip() for value in values if value.strip()]


def _patterns(values: list[str]) -> list[str]:
    """Return the entries of a selection; a name that can't be shown becomes a regular expression."""
    patterns: list[str] = []
    for entry in _entries(values):
        pattern = entry if entry.isprintable() else exact_entry(entry)
        patterns.append(pattern)
    return patterns


def _absolute(option: str, text: str, *, up: bool = False) -> str | None:
    """Return a time that stays the same whenever the command runs: the field may say "2h ago"; None if it is empty."""
    if not text.strip():
        return None
    try:
        return time_text(moment(text, up=up))
    except BadInputError as error:
        raise UsageError(f"{option}: {error.message}", error.hint) from None


def _offered(names: Iterable[str]) -> list[str]:
    return [exact_entry(name) for name in sorted(names)[:OFFERED]]
