"""Who follows an archive, a stream or an export, notes the number of a restore point. Whether that is still what it
was: repairs give numbers up, and a copy that was written to has others under the same numbers."""

from __future__ import annotations

from kbackup.archive.checkpoints import given_up
from kbackup.archive.reader import Archive
from kbackup.errors import RefusedError


def given_up_with(archive: Archive, seq: int) -> range | None:
    """The numbers that a repair gave up with `seq`; None where it gave up no such number. Its own restore point, the
    next number, had their records again, and may have expired since: who has the records up to `seq` can't tell which
    of that one's are the same."""
    numbers = given_up(archive.restore_points)
    for link in archive.gone:
        numbers += [range(some.first, some.last + 1) for some in link.given_up]
        if not link.restore_points:
            numbers.append(range((link.parent or 0) + 1, link.last + 1))
    return next((some for some in numbers if seq in some), None)


def manifest_of(archive: Archive, seq: int) -> str:
    """The checksum of that restore point's manifest; '' where there is none."""
    return next((point.checksum for point in archive.restore_points if point.seq == seq), "")


def check_same_point(archive: Archive, seq: int, manifest: str, noted: str, hint: str) -> None:
    """`RefusedError` where the restore point of that number is not the one whose `manifest` was noted, as far as both
    are known. `noted` says where it was, in words."""
    found = manifest_of(archive, seq)
    if manifest and found and manifest != found:
        raise RefusedError(
            f"restore point {seq} of {archive.store.url} is another one than {noted}: one of the archives went on "
            "from an older copy",
            hint,
        )
