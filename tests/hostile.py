"""Clients that mean no good, silent, one byte, dripping, not reading: ``python tests/hostile.py PORT COUNT [CERTIFICATE]``.

Each stays connected as long as it may; with ``--return SECONDS`` those that were thrown out come back after so long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import ssl
from typing import Final

KINDS: Final = ("silent", "one byte", "dripping", "not reading")
_DRIP_SECONDS: Final = 0.5
_RECEIVE_BYTES: Final = 2048
_REQUESTS: Final = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 4


def first_bytes(kind: str, *, tls: bool) -> bytes:
    """What a client of the kind says at once."""
    said = {
        "silent": (b"", b""),
        "one byte": (b"G", b"\x16"),
        "dripping": (b"GET /metrics HTTP/1.1\r\nX: ", b"\x16\x03\x01\x02"),
        "not reading": (_REQUESTS, _REQUESTS),
    }
    return said[kind][tls]


async def attack(port: int, kind: str, context: ssl.SSLContext | None) -> None:
    """One client, until it is thrown out."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)  # noqa: FBT003 - the socket's own signature
    if kind == "not reading":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    shakes = context if kind == "not reading" else None  # the others never finish the handshake
    reader, writer = await asyncio.open_connection(sock=sock, ssl=shakes, server_hostname="127.0.0.1" if shakes else None)
    with contextlib.closing(writer):
        writer.write(first_bytes(kind, tls=context is not None))
        if kind == "not reading":
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport of a socket has it
        while not writer.is_closing() and not reader.at_eof():
            await asyncio.sleep(_DRIP_SECONDS)
            if kind == "dripping":
                writer.write(b"x")


async def attack_again(port: int, kind: str, context: ssl.SSLContext | None, after: float | None) -> None:
    """One client that comes back *after* so many seconds, or never."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await attack(port, kind, context)
        if after is None:
            return
        await asyncio.sleep(after)


async def main(port: int, count: int, certificate: str | None, after: float | None) -> None:
    """All of them, until killed; a line on standard output when they have begun."""
    context = None if certificate is None else ssl.create_default_context(cafile=certificate)
    clients = [asyncio.create_task(attack_again(port, KINDS[number % len(KINDS)], context, after)) for number in range(count)]
    await asyncio.sleep(3 * _DRIP_SECONDS)
    print(f"{count} clients", flush=True)  # noqa: T201 - read by who started it
    await asyncio.wait(clients)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("certificate", nargs="?")
    parser.add_argument("--return", type=float, dest="after")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.port, arguments.count, arguments.certificate, arguments.after))
