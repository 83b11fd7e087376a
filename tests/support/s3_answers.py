"""Errors of S3 as its client raises them."""

from __future__ import annotations

from botocore import exceptions as boto


def answer(status: int, code: str, text: str = "") -> boto.ClientError:
    response = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(response, "PutObject")  # type: ignore[arg-type]
