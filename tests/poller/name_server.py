"""A DNS server of the tests' own."""

from __future__ import annotations

import socket
import threading

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

_TRIES = 20
_UDP_LIMIT = 512
"""Without EDNS a longer answer is cut off, and asked for again over TCP."""


def _same_port() -> tuple[socket.socket, socket.socket]:
    """A UDP socket and a TCP listener on one port; a port that is free for the one may be taken for the other."""
    for _ in range(_TRIES):
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 0))
        try:
            return datagrams, socket.create_server(datagrams.getsockname())
        except OSError:
            datagrams.close()
    raise AssertionError(f"no port was free for both in {_TRIES} tries")


class NameServer:
    """Answers A and AAAA queries over UDP and TCP on loopback from `records`; a name it does not know is NXDOMAIN."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.rcode = dns.rcode.NOERROR
        self.queries: list[tuple[str, str]] = []
        self._socket, self._listener = _same_port()
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=serve, daemon=True) for serve in (self._serve_udp, self._serve_tcp)]
        for thread in self._threads:
            thread.start()

    def _serve_udp(self) -> None:
        while True:
            wire, peer = self._socket.recvfrom(4096)
            if not wire:
                return
            query = dns.message.from_wire(wire)
            answer = self._answer(query)
            if len(answer.to_wire()) > _UDP_LIMIT:
                answer = dns.message.make_response(query)
                answer.flags |= dns.flags.TC
            self._socket.sendto(answer.to_wire(), peer)

    def _serve_tcp(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rwb") as stream:
                length = int.from_bytes(stream.read(2), "big")
                if not length:
                    return
                wire = self._answer(dns.message.from_wire(stream.read(length))).to_wire()
                stream.write(len(wire).to_bytes(2, "big") + wire)

    def _answer(self, query: dns.message.Message) -> dns.message.Message:
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        question = query.question[0]
        name, kind = question.name.to_text(), "A" if question.rdtype == 1 else "AAAA"
        self.queries.append((name, kind))
        answer.set_rcode(self.rcode)
        if self.rcode == dns.rcode.NOERROR:
            if addresses := self.records.get((name, kind)):
                answer.answer.append(dns.rrset.from_text_list(question.name, 5, "IN", kind, addresses))
            elif not any(known == name for known, _ in self.records):
                answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stopper:
            stopper.sendto(b"", self._socket.getsockname())
        socket.create_connection(self._listener.getsockname(), timeout=5).close()
        for thread in self._threads:
            thread.join(timeout=5)
        self._socket.close()
        self._listener.close()
