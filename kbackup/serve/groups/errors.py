"""A request that a group refuses."""

from __future__ import annotations

from kbackup.serve.protocol import ErrorCode


class GroupRequestError(Exception):
    """A request that a group refuses, with Kafka's code. `message` is for responses that have room for one.

    `member_id` is what a response must repeat all the same: the id that a new member has to join with."""

    def __init__(self, code: ErrorCode, message: str = "", member_id: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
        self.member_id = member_id
