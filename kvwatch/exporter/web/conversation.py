"""One client's connection: requests come in through h11, answers go out, each within its time."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Awaitable, Callable
from typing import Final

import h11

from kvwatch.exporter.web.messages import HttpAnswer, HttpRequest

REQUEST_SECONDS: Final = 10.0
"""How long a client may take for a whole request, from the opening of the connection or the end of the answer before."""
ANSWER_SECONDS: Final = 10.0
"""How long it may take to read a whole answer."""
_MAX_HEADER_BYTES: Final = 16 * 1024
_MAX_BODY_BYTES: Final = 1024
_READ_BYTES: Final = 16 * 1024
_PIECE_BYTES: Final = 64 * 1024
_TOO_LARGE: Final = http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class Conversation:
    """Serves the requests of one connection, one after another; `run` returns when the connection is to be closed."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, app: Callable[[HttpRequest], Awaitable[HttpAnswer]]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._app = app
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEADER_BYTES)
        self.pending = 0
        """Bytes of the answer that is being sent; 0 while a request is awaited or worked on."""
        self.waiting = True
        """Whether the client is to send something: such a connection may be closed without harm."""

    async def run(self) -> None:
        """Until the client goes, is late, or may not stay. Raises `TimeoutError`, `OSError`."""
        while True:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    request = await self._request()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return
            if request is None:
                return
            self.waiting = False
            answer = await self._app(request)
            await self._send(answer)
            if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
                return
            self._protocol.start_next_cycle()
            self.waiting = True

    async def _request(self) -> HttpRequest | None:
        """The next request; ``None`` when the client has gone."""
        request: HttpRequest | None = None
        body = 0
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                request = _request_of(event)
            elif isinstance(event, h11.Data):
                body += len(event.data)
                if body > _MAX_BODY_BYTES:
                    raise h11.RemoteProtocolError("a body nobody asked for", error_status_hint=_TOO_LARGE)
            elif isinstance(event, h11.EndOfMessage):
                return request
            else:
                return None

    async def _send(self, answer: HttpAnswer) -> None:
        status = http.HTTPStatus(answer.status)
        head = h11.Response(status_code=status, reason=status.phrase, headers=[("Server", "kvwatch"), *answer.headers])
        self.pending = len(answer.body)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._write(self._protocol.send(head))
                for start in range(0, len(answer.body), _PIECE_BYTES):
                    self._write(self._protocol.send(h11.Data(data=answer.body[start : start + _PIECE_BYTES])))
                    await self._writer.drain()
                self._write(self._protocol.send(h11.EndOfMessage()))
                await self._writer.drain()
        finally:
            self.pending = 0

    async def _refuse(self, status: int) -> None:
        """Say what was wrong, to a client whose protocol allows an answer at all."""
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = f"{http.HTTPStatus(status).phrase}\n".encode()
            headers = (("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("Connection", "close"))
            await self._send(HttpAnswer(status, headers, body))

    def _write(self, data: bytes | None) -> None:
        if data:
            self._writer.write(data)


def _request_of(event: h11.Request) -> HttpRequest:
    """The request as the routes want it. A target that is no path is no path of ours either: it finds nothing."""
    target = event.target.decode("latin-1")
    path, _, query = target.partition("?")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    return HttpRequest(event.method.decode("latin-1"), path, query, headers)
