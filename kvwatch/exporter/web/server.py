"""The socket side of the HTTP front: one event loop in a thread of its own, bounded in connections, bytes and time.

However many clients connect and say nothing, say it slowly or do not read, the next one is served: when all places are taken, the
connection that has waited longest for its client gives way. The places are few enough that the polls always find a descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from kvwatch.errors import ConfigError
from kvwatch.exporter.web.conversation import REQUEST_SECONDS, Conversation
from kvwatch.exporter.web.messages import App, HttpAnswer, HttpRequest

_log = structlog.get_logger(__name__)

WORKERS: Final = 4
"""Threads that make answers, so that a page being drawn does not hold up a probe."""
PLACES: Final = 48
"""Connections at once, where the limit on descriptors allows so many; a TLS connection costs 300 KiB."""
_FEWEST_PLACES: Final = 4
_PENDING_BYTES: Final = 8 * 1024 * 1024
"""Answers that their clients have not read yet, all together; beyond it the oldest is given up."""
_BACKLOG: Final = 128
_DRAIN_SECONDS: Final = 0.3
_STOP_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.1
_GRACE_SECONDS: Final = 0.01
"""How long a connection has its place for sure: a TLS handshake takes a few milliseconds of two processes. Shorter: where hundreds come
at once, one that does everything right gives way in the middle of it. Longer: of 500 that come at once the last waits ten such turns."""
_QUIET_SECONDS: Final = 600.0
"""How long nothing more is logged of clients that took all places."""

TlsContext = Callable[[], ssl.SSLContext | None]
"""The context of the next connection; ``None`` for plain HTTP."""


class _Front:
    """What runs in the event loop."""

    def __init__(self, listener: socket.socket, app: App, tls: TlsContext) -> None:
        self._listener = listener
        self._app = app
        self._tls = tls
        self._places = min(PLACES, max(_FEWEST_PLACES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3))
        self._conversations: dict[asyncio.Task[None], Conversation | None] = {}  # oldest first
        self._came: dict[asyncio.Task[None], float] = {}
        """When each of them was taken in, in the loop's seconds."""
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="http-answer")
        self._stopping = asyncio.Event()
        self._silent_until = 0.0

    async def run(self) -> None:
        """Serve until `stop`."""
        self._listen()
        await self._stopping.wait()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        await asyncio.sleep(0)  # who came last takes the first step, or nobody closes that socket
        busy = [task for task, conversation in self._conversations.items() if conversation is not None and not conversation.waiting]
        if busy:
            await asyncio.wait(busy, timeout=_DRAIN_SECONDS)
        for task in (rest := list(self._conversations)):
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_DRAIN_SECONDS)
        await asyncio.sleep(0)  # what was aborted closes its socket in the next round
        self._threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """End `run`; to be called in the loop."""
        self._stopping.set()

    def _listen(self) -> None:
        if not self._stopping.is_set():
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Take in one client; called whenever one waits."""
        loop = asyncio.get_running_loop()
        if len(self._conversations) >= self._places and (grace := self._grace()) > 0:
            self._pause(grace)  # whoever comes waits in the backlog meanwhile
            return
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # the client has gone again
            return
        except OSError as error:  # no descriptor is left
            self._complain(error.strerror or str(error))
            self._give_up_one()
            self._pause(_PAUSE_SECONDS)
            return
        sock.setblocking(False)  # noqa: FBT003 - the socket's own signature
        if len(self._conversations) >= self._places:
            self._complain(f"all {self._places} connections are taken")
            self._give_up_one()
        task = loop.create_task(self._serve(sock))
        self._conversations[task] = None
        self._came[task] = loop.time()
        task.add_done_callback(self._forget)

    def _pause(self, seconds: float) -> None:
        """Take in nobody for so long."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(seconds, self._listen)

    def _grace(self) -> float:
        """Seconds until there is a connection that may give way."""
        task = self._next_to_go()
        return 0.0 if task is None else self._came[task] + _GRACE_SECONDS - asyncio.get_running_loop().time()

    def _next_to_go(self) -> asyncio.Task[None] | None:
        """The oldest connection that waits for its client; if there is none, the oldest of all."""
        oldest = next(iter(self._conversations), None)
        waiting = (task for task, conversation in self._conversations.items() if conversation is None or conversation.waiting)
        return next(waiting, oldest)

    def _give_up_one(self) -> None:
        """End a connection, to make room."""
        task = self._next_to_go()
        if task is not None:
            self._forget(task)
            task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._conversations.pop(task, None)
        self._came.pop(task, None)

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the end of an answer must not wait for what was sent before
            context = self._tls()
            timeouts = {} if context is None else {"ssl_handshake_timeout": REQUEST_SECONDS, "ssl_shutdown_timeout": _STOP_SECONDS}
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=context, **timeouts)
        except (OSError, asyncio.CancelledError):
            sock.close()
            return
        transport.set_write_buffer_limits(high=0)  # what was written has left when the writer is drained
        conversation = Conversation(reader, asyncio.StreamWriter(transport, protocol, reader, loop), self._answer)
        if (task := asyncio.current_task()) in self._conversations:
            self._conversations[task] = conversation
        try:
            await conversation.run()
            transport.close()
        except (OSError, asyncio.CancelledError):  # late, gone, or given up
            transport.abort()
        except Exception:  # noqa: BLE001 - a fault of ours costs one connection
            _log.exception("http.connection_failed")
            transport.abort()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        if (task := asyncio.current_task()) in self._conversations:
            self._conversations[task] = self._conversations.pop(task)  # it has shown itself alive: others give way first
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._app, request)
        self._bound_pending(len(answer.body))
        return answer

    def _bound_pending(self, more: int) -> None:
        sending = [(task, one.pending) for task, one in self._conversations.items() if one is not None and one.pending]
        total = more + sum(size for _, size in sending)
        for task, size in sending:
            if total <= _PENDING_BYTES:
                break
            total -= size
            task.cancel()

    def _complain(self, detail: str) -> None:
        """Once, and then not for a while, however many come."""
        now = asyncio.get_running_loop().time()
        if now >= self._silent_until:
            _log.warning("http.crowded", detail=detail, effect="connections that wait for their client are closed")
        self._silent_until = now + _QUIET_SECONDS


class Server:
    """A running HTTP server: `url` where a person finds it, `port` as bound, `close` to stop it."""

    def __init__(self, listener: socket.socket, app: App, tls: TlsContext) -> None:
        host, self.port = listener.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - compared, not bound
        self._tls = tls
        self.url = f"{self.scheme}://{shown}:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._front = _Front(listener, app, tls)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    @property
    def scheme(self) -> str:
        """What the next connection is to speak, http or https."""
        return "http" if self._tls() is None else "https"

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.set_exception_handler(_note)
            self._loop.run_until_complete(self._front.run())

    def close(self) -> None:
        """Stop listening and give the port back; running requests get a moment to end."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._front.stop)
        self._thread.join(_STOP_SECONDS)


def serve(app: App, *, host: str, port: int, tls: TlsContext = lambda: None) -> Server:
    """Bind and serve in the background; port 0 takes a free one. *tls* is asked for each connection.

    Raises `ConfigError` when the address cannot be bound.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise ConfigError([f"web.listen_address {host}:{port}: {error.strerror}"]) from error
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ConfigError([f"web.listen_address {host}:{port}: {reason}"]) from error
    listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
    return Server(listener, app, tls)


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """A client that goes away or speaks nonsense is not worth more than debug."""
    _log.debug("http.client_error", detail=str(context.get("exception") or context.get("message")))
