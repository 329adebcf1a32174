"""A vLLM to be measured against: ``python bench_server.py BODY`` serves the file at every path, its counters moving, on a free port.

One thread and no library between it and the socket: it must cost next to nothing beside what is measured. Every connection is
closed after its answer, as vLLM's server has closed an idle one before the next poll.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time
from pathlib import Path

MOVING = re.compile(
    r"^(vllm:(?:(?:generation_tokens|prompt_tokens|request_success)_total|\w+_(?:bucket|count|sum))\{[^}]*\}) (\S+)$", re.MULTILINE
)
"""Histograms, too: a snapshot that says what the one before said could be kept for nothing."""
FRESH_SECONDS = 0.05


def answer(text: str, seconds: float) -> bytes:
    """The exposition after so long, with its head."""
    body = MOVING.sub(lambda found: f"{found[1]} {float(found[2]) + int(100 * seconds)!r}", text).encode()
    head = (
        "HTTP/1.1 200 OK",
        "Content-Type: text/plain; version=0.0.4; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(head).encode() + body


def main(path: str) -> None:
    """Serve until killed; the port is the only line on standard output."""
    text, began = Path(path).read_text(), time.perf_counter()
    made, whole = -1.0, b""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)  # noqa: T201 - read by who started it
        while True:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), connection:
                connection.settimeout(1.0)
                connection.recv(65536)
                seconds = time.perf_counter() - began
                if seconds - made > FRESH_SECONDS:
                    made, whole = seconds, answer(text, seconds)
                connection.sendall(whole)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)


if __name__ == "__main__":
    main(sys.argv[1])
