"""Documents of mirrors, migrations, exports, keys and configurations, composed of several values for `--json`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from kbackup.jobs.export.job import ExportReport
from kbackup.jobs.keys import HeldKeys
from kbackup.jobs.migrate.rollback import DeletionGuard, RollbackStep
from kbackup.jobs.migrate.states import State, Witness
from kbackup.jobs.migrate.znodes import Sign, ZnodeContent
from kbackup.jobs.mirror.dry_run import DryRun
from kbackup.jobs.mirror.positions import Translation
from kbackup.jobs.mirror.status import FlowOverview
from scripts.docs.outputs.reading import LeaseFields


class HalfFields(TypedDict):
    """The report of a half: `FollowReport` of one that takes, `ApplyReport` of one that applies."""

    archive: NotRequired[str]
    flow: NotRequired[str]
    restore_point: int | None
    restore_points: NotRequired[int]
    rounds: int
    retries: int
    records: int
    bytes: int
    stored_bytes: NotRequired[int]
    losses: NotRequired[dict[str, int]]
    is_loss: NotRequired[bool]
    seconds: NotRequired[float]


class HalvesOutput(TypedDict):
    halves: dict[str, HalfFields]


class DryRunsOutput(TypedDict):
    flows: list[DryRun]


class FlowsOutput(TypedDict):
    archive: str
    flows: list[FlowOverview]


class TranslationsOutput(TypedDict):
    group: str
    flows: list[Translation]


class ClaimFields(TypedDict):
    witness: Witness
    says: str
    allows: list[State]


class UnreadFields(TypedDict):
    why: str
    hint: str


class StateOutput(TypedDict):
    state: State
    certain: bool
    possible: list[State]
    way_back: bool
    zookeeper_brokers: int | None
    records_behind: int | None
    waits_for: list[str]
    witnesses: list[ClaimFields]
    disagreements: list[str]
    not_looked_at: list[UnreadFields]
    next_step: str
    at: NotRequired[str]


class RollbackOutput(TypedDict):
    state: StateOutput
    controllers: dict[str, Sign]
    deleted: list[ZnodeContent]
    steps: list[RollbackStep]
    guards: list[DeletionGuard]


class HistoryFields(TypedDict):
    catalog: int
    kind: str
    run: str
    by: str
    at: str
    summary: str


class HistoryOutput(TypedDict):
    archive: str
    history: list[HistoryFields]


class ExportOutput(TypedDict):
    exports: list[ExportReport]


class UnlockOutput(TypedDict):
    archive: str
    state: Literal["none", "released", "dead", "alive"]
    lease: LeaseFields | None
    broken: bool
    free_at: str | None


class KeyFileOutput(TypedDict):
    file: str
    key: str


class KeysOutput(TypedDict):
    archive: str
    files: list[HeldKeys]
    skipped: list[str]
    conflicts: list[str]


class RotationOutput(TypedDict):
    archive: str
    key: str
    data_keys: int
    file: str
    removed: list[str]
    left: list[str]
    skipped: list[str]


class OriginFields(TypedDict):
    kind: Literal["default", "file", "environment", "flag", "option"]
    name: str


class SettingFields(TypedDict):
    key: str
    value: Any
    origin: OriginFields


class SettingsOutput(TypedDict):
    settings: list[SettingFields]
    notes: list[str]


class KeyFields(TypedDict):
    key: str
    takes: str
    default: Any
    meaning: str


class KeyTableOutput(TypedDict):
    keys: list[KeyFields]
    variables: dict[str, str]
