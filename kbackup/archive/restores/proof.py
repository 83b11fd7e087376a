"""What this machine knows of the documents of restores: the digests of the documents that it has written.

Whoever may write to a bucket can also put documents under restores/<id>/, and an undo or a resume does what they say,
with the operator's rights in the cluster and in the schema registry. Two things tell a restore's own documents from
others:

- In an encrypted archive every object is sealed under the archive's key and bound to its own name.
- Elsewhere the machine that ran the restore remembers what it wrote. A document that differs is refused. One that this
  machine did not write is *unproven*: an undo asks for the operator's word before it goes by it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path

from kbackup.errors import MismatchError, RefusedError
from kbackup.store.base import Buffer, Store, encryption_of, view_of
from kbackup.store.wrappers import DelegatingStore
from kbackup.util.system import read_own, write_own
from kbackup.util.text import join_names

log = logging.getLogger(__name__)

_DOCUMENT = re.compile(
    r"^restores/([^/]+)/(?:(?:plan|report|schemas|schemas-before|(?:groups|settings)-before-[0-9]+)\.json"
    r"|offsets\.parquet)\Z"
)
_NAMED = 3  # documents that an error lists by name


class ProvenStore(DelegatingStore):
    """`Store` over `inner` that remembers in `folder` what it writes under restores/, and refuses other content there.

    Without a folder it remembers as long as it lives. Workers of Spark get the store below it: they write nothing but
    parts of offset maps, and these are not among the documents that have to be proven.
    """

    def __init__(self, inner: Store, folder: Path | None) -> None:
        super().__init__(inner)
        self._folder = folder
        self._digests: dict[str, dict[str, str]] = {}
        self.unproven: dict[str, str] = {}
        """The digests, by key, of documents that were read, and that this machine did not write."""

    def __reduce__(self) -> tuple[object, ...]:
        return _itself, (self.inner,)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        data, etag = self.inner.get_with_etag(key)
        if found := _DOCUMENT.match(key):
            self._check(found[1], key, data)
        return data, etag

    def put(self, key: str, data: Buffer) -> str:
        etag = super().put(key, data)
        self._remember(key, _digest(data))
        return etag

    def put_new(self, key: str, data: Buffer) -> str:
        etag = super().put_new(key, data)
        self._remember(key, _digest(data))
        return etag

    def accept(self) -> None:
        """Take the unproven documents for the restore's own from now on, as the operator says. What counts is the
        digest of what was read: the store may have another document by now."""
        for key, digest in sorted(self.unproven.items()):
            self._remember(key, digest)

    def _check(self, restore_id: str, key: str, data: bytes) -> None:
        known = self._known(restore_id).get(key)
        digest = _digest(data)
        if known is None:
            self.unproven[key] = digest
        elif known != digest:
            raise MismatchError(
                f"file {key} at {self.url} is not the one that this machine has written",
                "find out who replaced it, and restore it from a bucket version or a copy",
            )

    def _remember(self, key: str, digest: str) -> None:
        found = _DOCUMENT.match(key)
        if found is None:
            return
        restore_id = found[1]
        digests = self._known(restore_id)
        digests[key] = digest
        self.unproven.pop(key, None)
        if self._folder is None:
            return
        document = {"archive": self.url, "restore_id": restore_id, "digests": digests}
        file = self._file(self._folder, restore_id)
        try:
            write_own(file, json.dumps(document, indent=1).encode() + b"\n")
        except OSError as error:
            log.info("the digests of restore %s can't be kept in %s: %s", restore_id, file.parent, error.strerror)

    def _known(self, restore_id: str) -> dict[str, str]:
        """Return the digests of a restore's documents by key."""
        if restore_id not in self._digests:
            self._digests[restore_id] = self._read(restore_id)
        return self._digests[restore_id]

    def _read(self, restore_id: str) -> dict[str, str]:
        if self._folder is None:
            return {}
        file = self._file(self._folder, restore_id)
        try:
            content = json.loads(read_own(file))
            return {str(key): str(digest) for key, digest in content["digests"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # a file that is missing or damaged proves nothing: the documents are unproven

    def _file(self, folder: Path, restore_id: str) -> Path:
        # A name of its own for each restore of each archive. Ids and paths may have signs that a file name can't.
        identity = [self.address.server, *self.address.path, restore_id]
        digest = hashlib.sha256(json.dumps(identity).encode())
        return folder / f"{digest.hexdigest()}.json"


def _itself(store: Store) -> Store:
    """Return the store that was pickled in the place of a `ProvenStore`."""
    return store


def _digest(data: Buffer) -> str:
    return hashlib.sha256(view_of(data)).hexdigest()


def with_proof(state: Store, folder: Path | None) -> Store:
    """Return a store of restores' documents that knows which of them this machine has written. An encrypted store needs
    no such memory: nobody without its key can make a document that it reads."""
    if encryption_of(state):
        return state
    return ProvenStore(state, folder)


def unproven_documents(state: Store) -> list[str]:
    """Return the keys of the documents read so far that nothing proves to be the restore's own."""
    return sorted(state.unproven) if isinstance(state, ProvenStore) else []


def check_proven(state: Store, restore_id: str, accept: bool) -> None:
    """Raise `RefusedError` if a document that was read is unproven. `accept`: the operator takes them for genuine."""
    unproven = unproven_documents(state)
    if not unproven or not isinstance(state, ProvenStore):
        return
    if accept:
        state.accept()
        return
    raise RefusedError(
        f"nothing proves that {join_names(unproven, _NAMED)} at {state.url} are what restore {restore_id} wrote: "
        "this machine keeps no record of having written them, and the archive is not encrypted",
        "undo it on the machine that ran the restore; or run the line without --confirm, compare the plan with what "
        "the restore did, and pass --accept-unproven",
    )
