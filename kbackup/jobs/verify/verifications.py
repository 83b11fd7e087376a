"""Check the records of earlier verifications in an archive."""

from __future__ import annotations

from collections.abc import Collection

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.archive.verify.findings import CHANGED, Findings
from kbackup.jobs.verify.report import Verification
from kbackup.store.base import Store


def check_verifications(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check each record by its own checksum, and that its folder has its id and scope."""
    for key in keys:
        if not key.startswith(layout.VERIFICATIONS):
            continue
        parsed = layout.parse_verification_key(key)
        if parsed is None:
            findings.note(key, "is no file of a verification")
            continue
        with findings.catching(key):
            record = load(Verification, store.get(key), key)
            if (record.verification_id, record.scope) != parsed:
                findings.add(
                    key, f"is of verification {record.verification_id}, not of the folder it is in", CHANGED
                )
