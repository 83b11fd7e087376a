"""Schemas of a restore point, made by hand."""

from __future__ import annotations

from kbackup.archive.models import Schemas
from kbackup.schemas.base import SchemaReference, SchemaVersion


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
