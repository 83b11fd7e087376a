"""Ask those who answer as a server does: messages go through Kafka's encoding both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from kbackup.serve.protocol import Api, ClientConnection, ClientRequest


class Asking:
    """Asks the answerers of a list of APIs."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self.apis = {api.request.name: api for api in apis}

    async def __call__(
        self, message: Any, version: int | None = None, connection: ClientConnection | None = None
    ) -> Any:
        """Return the answer to a message in a version, by default in the newest."""
        api = self.apis[message.name]
        number = api.newest if version is None else version
        decoded = api.request.decode(bytes(message.encode(version=number)), version=number)
        client = connection or ClientConnection("127.0.0.1", client_id="client")
        response = await api.answer(ClientRequest(decoded, number, client))
        assert response is not None
        return api.response.decode(bytes(response.encode(version=number)), version=number)

    def versions(self, name: str) -> range:
        api = self.apis[f"{name}Request"]
        return range(api.oldest, api.newest + 1)


class Clock:
    """A clock that tests set, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def in_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in an event loop of its own."""

    async def run() -> None:
        await asyncio.wait_for(scenario(), 20)

    asyncio.run(run())
