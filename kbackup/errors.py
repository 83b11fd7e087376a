"""Every error that kbackup raises on purpose, with the exit code and the hint it ends in.

    KbackupError                 1   failure
    ├── UsageError               2   a flag, a key or a value that can't be used
    ├── RefusedError             1   a preflight said no; nothing was written
    ├── NoArchiveError          10   nothing that can be read as an archive
    ├── MismatchError           10   the archive, a finished restore or a migration is not as expected
    ├── LockedError             11   another writer holds the lease
    ├── LeaseLostError          11   our lease was taken over
    ├── WrongKeyError           12   the key of an encrypted archive is wrong, missing, or of no use there
    ├── CorruptError            13   bytes that are not what the format or the manifest says
    ├── UndecodableError         1   a key or value that its schema does not fit
    ├── UnreachableError        14   source, target, store or schema registry can't be reached or denies us
    ├── ClusterError             1   the cluster answered with an error
    │   └── FencedError             another producer took over our transactional id; never tried again
    ├── StoreError               1   the store answered with an error
    │   ├── NotFoundError
    │   ├── AlreadyExistsError
    │   ├── PreconditionError        a conditional replace met another version
    │   ├── DeniedError         14
    │   └── OutcomeUnknownError      a write may or may not have taken effect
    └── InterruptedByUserError 130

A run that is done but reports a loss, a difference or a finding of `status` ends with `EXIT_LOSS` (3); that is a
result, not an error.
Errors survive pickling and a trip through an executor's traceback (`marker`, `from_text`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import ClassVar

EXIT_OK = 0
EXIT_LOSS = 3

_MARK = "KBACKUP-ERROR:"


# Credentials in texts. Addresses and the errors of libraries can hold some, and reach every message.

HIDDEN = "********"
"""What is shown in place of a secret."""

_USERINFO = re.compile(r"([a-z0-9+.-]*)://([^/?#\s]*)(?=@)", re.IGNORECASE)
_CONTAINERS = {"abfs", "abfss", "wasb", "wasbs"}
"""Schemes that name a container where others have a user."""
_SIGNATURES = "sig|signature|x-amz-signature|x-amz-security-token|x-goog-signature|access_token|upload_id"
"""Parameters of queries that let everybody in: of signed addresses, of logins, and of Google's upload sessions."""
_TOKENS = "token|password|passwd|secret|api_?key|key|code"
"""Others that do, whose names are usual words elsewhere."""
_CONNECTION = "AccountKey|SharedAccessKey|SharedAccessSignature"
"""Parts of a connection string of Azure's that do."""
_QUERY = re.compile(rf"((?<![\w-])(?:{_SIGNATURES})|(?<=[?&])(?:{_TOKENS}))=([^&\s\"'<>;]+)", re.IGNORECASE)
_PARTS = re.compile(rf"(?<![\w-])({_CONNECTION})=([^;\s\"'<>]+)", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Return the text without passwords and tokens in its URLs, signatures in their queries, and keys in connection
    strings. A user's name beside a password stays."""
    # Most texts have no credentials: looking for a sign first spares them the expressions.
    if "=" in text:
        text = _QUERY.sub(rf"\1={HIDDEN}", text)
        text = _PARTS.sub(rf"\1={HIDDEN}", text)
    if "@" in text:
        text = _USERINFO.sub(_hidden_userinfo, text)
    return text


def _hidden_userinfo(match: re.Match[str]) -> str:
    scheme, info = match.groups()
    user, colon, _ = info.partition(":")
    if colon:
        return f"{scheme}://{user}:{HIDDEN}"
    if scheme.lower() in _CONTAINERS:
        return match[0]
    # A name alone may be a token.
    return f"{scheme}://{HIDDEN}"


class KbackupError(Exception):
    """Base of all errors: `message` names the object, `hint` begins with a verb and says what to do about it.

    A class may have a `default_hint`, for errors that are made without one. Credentials in addresses are hidden here,
    for all that prints, logs, sends or archives an error.
    """

    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = without_credentials(message)
        self.hint = without_credentials(hint or self.default_hint)
        super().__init__(self.message, self.hint)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def marker(self) -> str:
        """One line that `from_text` finds again inside a longer text (an executor's traceback).

        It names the nearest class of this module: another module's may not be loaded where it is read.
        """
        kind = next(each for each in type(self).__mro__ if each.__module__ == __name__)
        return _MARK + json.dumps([kind.__name__, self.message, self.hint])


class UsageError(KbackupError):
    exit_code = 2


class RefusedError(KbackupError):
    """A check before the work failed; nothing was written."""


class NoArchiveError(KbackupError):
    exit_code = 10


class MismatchError(KbackupError):
    """An object or topic belongs to something else than this run; nothing was written."""

    exit_code = 10


class LockedError(KbackupError):
    exit_code = 11


class LeaseLostError(KbackupError):
    exit_code = 11


class WrongKeyError(KbackupError):
    """The key-encryption key does not fit the archive: another one, none, or one where nothing is encrypted."""

    exit_code = 12


class CorruptError(KbackupError):
    """Bytes that contradict the format or the manifest. Names file, position and hint."""

    exit_code = 13


class UndecodableError(KbackupError):
    """A key or value, or the schema that it names, is not what decoding needs. The bytes are there all the same."""

    default_hint = "decode by another schema, or show the bytes as they are"


class UnreachableError(KbackupError):
    exit_code = 14


class ClusterError(KbackupError):
    """The Kafka cluster answered with an error that is not about reaching it."""


class FencedError(ClusterError):
    """Another producer took over our transactional id. Trying again would only fence that one in turn."""


class StoreError(KbackupError):
    """The store answered with an error."""

    default_hint = "check the state and the log of the store, then run the command again"


class NotFoundError(StoreError):
    default_hint = "check the address, or restore the object from a bucket version or a copy"


class AlreadyExistsError(StoreError):
    default_hint = "run the command again: another writer made the object first"


class PreconditionError(StoreError):
    """A replace-if-match met another version of the object."""

    default_hint = "run the command again: another writer replaced the object"


class DeniedError(StoreError):
    exit_code = 14


class OutcomeUnknownError(StoreError):
    """A write may or may not have taken effect; the caller reads back to find out."""

    default_hint = "run the command again: the write may have taken effect"


class InterruptedByUserError(KbackupError):
    exit_code = 130
    # Each long command gives its own: what is left, and the command that goes on.
    default_hint = ""


def suggest_name(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the hint of an error about an unknown `name`: the nearest of `names`, or `otherwise` if none is near."""
    # difflib takes longer to load than the rest of this module.
    import difflib

    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def _tree(root: type[KbackupError]) -> dict[str, type[KbackupError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def from_text(text: str) -> KbackupError | None:
    """Return the last error whose `marker` stands in `text`, or None."""
    at = text.rfind(_MARK)
    if at < 0:
        return None
    # The traceback goes on after the JSON.
    fields, _ = json.JSONDecoder().raw_decode(text[at + len(_MARK) :])
    name, message, hint = fields
    return _tree(KbackupError)[name](message, hint)
