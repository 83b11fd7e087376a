"""Replay of the records of a metadata log: ACLs, SCRAM users and delegation tokens."""

from __future__ import annotations

from pathlib import Path

from kbackup.metadata.entities import Acl, DelegationToken, ScramUser
from kbackup.migrate.metadata_log.codec import record
from kbackup.migrate.metadata_log.image import read_metadata_log
from tests.support.metadata_records import write_segment

A, B = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
ACL = {"id": A, "resourceType": 7, "resourceName": "u", "patternType": 3, "principal": "User:a", "host": "*"}
SCRAM = {"name": "u", "mechanism": 2, "salt": b"s", "storedKey": b"k", "serverKey": b"v", "iterations": 4096}
TOKEN = {"owner": "User:a", "requester": "User:b", "renewers": ["User:c"], "tokenId": "t"}


def test_an_image_has_acls_credentials_and_tokens(tmp_path: Path) -> None:
    write_segment(
        tmp_path,
        0,
        [record("AccessControlEntryRecord", {**ACL, "operation": 13, "permissionType": 3})],
        [record("AccessControlEntryRecord", {**ACL, "id": B, "operation": 99, "permissionType": 2})],
        [record("UserScramCredentialRecord", SCRAM), record("UserScramCredentialRecord", {**SCRAM, "mechanism": 1})],
        [record("RemoveUserScramCredentialRecord", {"name": "u", "mechanism": 1})],
        [record("DelegationTokenRecord", {**TOKEN, "issueTimestamp": 1, "expirationTimestamp": 2, "maxTimestamp": 3})],
        [record("DelegationTokenRecord", {**TOKEN, "tokenId": "gone"})],
        [record("RemoveDelegationTokenRecord", {"tokenId": "gone"})],
    )
    reading = read_metadata_log(tmp_path)
    words = {"resource": "user", "name": "u", "pattern": "literal", "principal": "User:a", "host": "*"}
    assert reading.acls == (
        Acl(**words, operation="99", permission="deny"),
        Acl(**words, operation="create_tokens", permission="allow"),
    )
    assert reading.scram_users == (
        ScramUser(
            user="u", mechanism="SCRAM-SHA-512", iterations=4096, salt="cw==", stored_key="aw==", server_key="dg=="
        ),
    )
    assert reading.delegation_tokens == (
        DelegationToken(
            id="t", owner="User:a", requester="User:b", renewers=("User:c",), issued_at=1, expires_at=2, max_at=3
        ),
    )
    assert [n.what for n in reading.not_carried] == ["secrets of delegation tokens"]
    write_segment(tmp_path, 8, [record("RemoveAccessControlEntryRecord", {"id": A})])
    assert [a.operation for a in read_metadata_log(tmp_path).acls or ()] == ["99"]
