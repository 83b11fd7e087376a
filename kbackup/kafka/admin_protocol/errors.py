"""Why there is no connection, or no answer. No text holds a secret."""

from __future__ import annotations


class NotMappedError(Exception):
    """A property that only librdkafka can follow."""


class LoginError(Exception):
    """The other half of a login is not what it must be."""


class NoConnectionError(Exception):
    """No broker let us in, or one that did ended the connection."""


class RefusedRequestError(Exception):
    """A broker answered with an error: Kafka's `code`, and its own words."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(words)
        self.code = code
        self.words = words
