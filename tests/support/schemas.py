"""Schemas of a restore point, made by hand, and a registry in memory."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode, urlsplit

from kbackup.archive import layout
from kbackup.archive.models import Schemas, dump
from kbackup.jobs.schemas.documents import RestoredSchema, SchemaMap, SchemasBefore
from kbackup.jobs.schemas.plan import PlannedSchema, SchemaPlan
from kbackup.kafka.schema_registry import SchemaRegistry
from kbackup.schemas.base import SchemaReference, SchemaVersion, SubjectSettings
from kbackup.store.base import Store
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.confluent_registry import RefusedError as Refusal


def version(
    subject: str, number: int, schema_id: int, *needs: str, state: str = "active", guid: str = ""
) -> SchemaVersion:
    references = tuple(SchemaReference(name=f"{n}.proto", subject=n, version=1) for n in needs)
    return SchemaVersion(
        subject=subject,
        version=number,
        id=schema_id,
        guid=guid,
        schema=f'"{subject}{number}"',
        references=references,
        state=state,  # type: ignore[arg-type]
    )


def schemas(*versions: SchemaVersion) -> Schemas:
    return Schemas(captured_at="", registry="http://r", kept="all", versions=versions)


def put_restored_schemas(store: Store, restore_id: str) -> None:
    """Write what a restore notes of the schemas that it registered."""
    about: dict[str, Any] = {"registry": "http://r", "mode": "map", "prefix": ""}
    at = "2026-01-03T00:00:00.000Z"
    step = PlannedSchema(source="orders-value", schema=version("orders-value", 1, 7), action="create")
    plan = SchemaPlan(**about, steps=(step,), versions={}, before=(SubjectSettings(subject=""),), after=())
    before = SchemasBefore(restore_id=restore_id, created_at=at, plan=plan)
    store.put_new(layout.restore_key(restore_id, layout.SCHEMAS_BEFORE), dump(before))
    done = RestoredSchema(source="orders-value", version=1, subject="orders-value", target_version=2, id=9)
    ids = SchemaMap(**about, restore_id=restore_id, restored_at=at, ids={7: 9}, guids={}, schemas=(done,))
    store.put_new(layout.restore_key(restore_id, layout.SCHEMAS), dump(ids))


class Killed(BaseException):
    pass


class Client(SchemaRegistry):
    """The client, whose requests go to `server` without a socket. From request `until` on it is dead."""

    def __init__(self, server: ConfluentRegistry, until: int | None = None) -> None:
        self.url, self._section = "http://registry", "target_schema_registry"
        self.server, self.until, self.asked = server, until, 0
        self._urls = [self.url]

    def _send(self, method: str, url: str, content: bytes | None, query: Any) -> tuple[int, bytes]:
        self.asked += 1
        if self.until is not None and self.asked >= self.until:
            raise Killed
        path = f"{urlsplit(url).path}?{urlencode(query)}"
        try:
            return 200, json.dumps(self.server.answer(method, path, json.loads(content or b"{}"))).encode()
        except Refusal as refusal:
            return refusal.status, json.dumps({"error_code": refusal.code, "message": str(refusal)}).encode()


def put(server: ConfluentRegistry, *versions: SchemaVersion) -> ConfluentRegistry:
    for v in versions:
        references = [{"name": r.name, "subject": r.subject, "version": r.version} for r in v.references]
        content = {"schema": v.schema, "references": references}
        server.put(v.subject, v.version, v.id, content, deleted=v.state == "deleted")
    return server
