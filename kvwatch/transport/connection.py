"""Connections that obey one deadline for everything: looking up the name, connecting, and every byte of the answer.

A timeout of `requests` counts for a single socket operation, so a peer that drips a byte a second is never late. Here each operation
gets what is left of the deadline. No thread watches over it, except for the name lookup, which cannot be interrupted.
"""

from __future__ import annotations

import io
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, cast

from urllib3.connection import HTTPConnection, HTTPSConnection

from kvwatch.clock import Clock
from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_READ_AHEAD: Final = 65536


class Deadline:
    """A moment by which all must be done."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, above zero; raises `ScrapeError` (``TIMEOUT``) when there are none."""
        left = self._end - self._clock.monotonic()
        if left <= 0:
            raise self.missed("no whole answer")
        return left

    def missed(self, what: str) -> ScrapeError:
        """The error to raise when an operation ran into the deadline."""
        return ScrapeError(FailureReason.TIMEOUT, f"{what} within {self.seconds:g} s")


class _Reader(io.RawIOBase):
    """What a socket receives."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        self._sock.settimeout(self._deadline.remaining())
        try:
            return self._raw.readinto(buffer)
        except TimeoutError:
            raise self._deadline.missed("no whole answer") from None

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Socket:
    """A connected socket, plain or TLS, whose `makefile` reads by the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._deadline), _READ_AHEAD)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Bounded(HTTPConnection):
    """What plain and TLS connections have in common."""

    def __init__(self, *args: Any, deadline: Deadline, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline = deadline

    def _new_conn(self) -> socket.socket:
        return open_socket(self._dns_host, self.port, self._deadline)

    def connect(self) -> None:
        super().connect()
        self.sock = cast("socket.socket", _Socket(self.sock, self._deadline))


class BoundedHTTPConnection(_Bounded):
    """`urllib3`'s connection with a `Deadline`."""


class BoundedHTTPSConnection(_Bounded, HTTPSConnection):
    """The same over TLS; the handshake has what is left when it begins."""


def open_socket(host: str, port: int, deadline: Deadline) -> socket.socket:
    """A connected socket whose timeout is what is left of `deadline`.

    Each address of the host gets its share of the time, so that one that swallows packets does not hide one that works.
    Raises `ScrapeError`: ``DNS``, ``CONNECT`` or ``TIMEOUT``.
    """
    addresses = _addresses(host, port, deadline)
    failure = ScrapeError(FailureReason.DNS, f"{host} has no address")
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.remaining() / (len(addresses) - index))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            sock.settimeout(deadline.remaining())
        except TimeoutError:
            sock.close()
            failure = deadline.missed(f"no connection to {address[0]} port {port}")
        except OSError as error:
            sock.close()
            failure = ScrapeError(FailureReason.CONNECT, f"{address[0]} port {port}: {error.strerror or error}")
        except ScrapeError:
            sock.close()
            raise
        else:
            return sock
    raise failure


_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
_lookups: Final[dict[tuple[str, int], Future[list[_Address]]]] = {}
"""Names being looked up right now. A resolver that hangs costs one thread per name, not one per poll."""
_lookups_lock: Final = threading.Lock()


def _addresses(host: str, port: int, deadline: Deadline) -> list[_Address]:
    try:
        return _getaddrinfo(host, port, socket.AI_NUMERICHOST)  # an address needs no lookup and no thread
    except OSError:
        pass
    lookup = _lookup(host, port)
    try:
        return lookup.result(deadline.remaining())
    except TimeoutError:
        raise ScrapeError(FailureReason.DNS, f"{host}: no answer from the resolver within {deadline.seconds:g} s") from None
    except (OSError, ValueError) as error:  # UnicodeError is one
        raise ScrapeError(FailureReason.DNS, f"{host}: {getattr(error, 'strerror', None) or 'not a host name'}") from None


def _lookup(host: str, port: int) -> Future[list[_Address]]:
    """The lookup of this name: the one under way, or a new one."""
    key = host, port
    with _lookups_lock:
        lookup = _lookups.get(key)
        if lookup is None:
            lookup = Future()
            try:
                threading.Thread(target=_look_up, args=(key, lookup), name=f"resolve {host}", daemon=True).start()
            except RuntimeError as error:  # no thread could be started; the next poll tries again
                raise ScrapeError(FailureReason.DNS, f"{host} cannot be looked up: {error}") from None
            _lookups[key] = lookup  # not before: a lookup nobody makes would be waited for by every later poll
        return lookup


def _look_up(key: tuple[str, int], lookup: Future[list[_Address]]) -> None:
    try:
        lookup.set_result(_getaddrinfo(*key))
    except Exception as error:  # noqa: BLE001 - handed to whoever waits
        lookup.set_exception(error)
    finally:
        with _lookups_lock:
            del _lookups[key]


def _getaddrinfo(host: str, port: int, flags: int = 0) -> list[_Address]:
    return cast("list[_Address]", socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
