"""Answer ApiVersions: which requests are answered, in which versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbackup.kafka.control.messages import metadata
from kbackup.serve.protocol import Api, ClientRequest, ErrorCode

_ApiVersion = metadata.ApiVersionsResponse.ApiVersion
NEWEST = 4


def versions_api(apis: Sequence[Api]) -> Api:
    """Return the API that tells of `apis`, and of itself."""

    async def answer(request: ClientRequest) -> Any:
        software = request.message.client_software_name
        if software:
            version = request.message.client_software_version
            request.connection.software = f"{software} {version}"[:_LONGEST]
        return versions_response(every)

    own = Api(metadata.ApiVersionsRequest, metadata.ApiVersionsResponse, 0, NEWEST, answer)
    every = [*apis, own]
    return own


_LONGEST = 100


def versions_response(apis: Sequence[Api], error: int = ErrorCode.NONE) -> Any:
    """Return the response that lists `apis`."""
    keys = [
        _ApiVersion(api_key=api.key, min_version=api.oldest, max_version=api.newest)
        for api in sorted(apis, key=lambda api: api.key)
    ]
    return metadata.ApiVersionsResponse(error_code=error, api_keys=keys)
