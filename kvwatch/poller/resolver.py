"""Names to addresses, through dnspython."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import dns.exception
import dns.nameserver
import dns.resolver

from kvwatch.errors import ConfigError
from kvwatch.poller.lookup import Lookup, LookupFailed
from kvwatch.text import one_line

LOOKUP_SECONDS: Final = 5.0
"""The longest one name may take to resolve, retries included."""


def dns_lookup(server: str | None) -> Lookup:
    """A `Lookup` through *server* (``host:port`` or ``[ipv6]:port``, an address), or through the system's resolvers when None.

    IPv4 first; IPv6 where the name has no IPv4, so that a dual-stack pod is one target and not two. Relative names go through the
    system's search list, as ``vllm-pods`` inside a pod does. Raises `ConfigError` for a server that is none.
    """
    try:
        resolver = dns.resolver.Resolver(configure=server is None)
        if server is not None:
            resolver.nameservers, resolver.port = _server_address(server)
    except (dns.exception.DNSException, ValueError) as error:
        raise ConfigError([f"discovery.dns_server: {one_line(error)}"]) from error

    def lookup(name: str) -> Sequence[str]:
        for kind in ("A", "AAAA"):
            try:
                answer = resolver.resolve(name, kind, search=True, lifetime=LOOKUP_SECONDS, raise_on_no_answer=False)
            except dns.resolver.NXDOMAIN:
                return ()
            except dns.exception.Timeout as error:  # its own text says how long it took, so no two are alike and each would be logged
                raise LookupFailed(f"no answer within {LOOKUP_SECONDS:g} s") from error
            except dns.exception.DNSException as error:
                raise LookupFailed(one_line(error)) from error
            if addresses := [record.to_text() for record in answer]:
                return sorted(addresses, key=lambda address: ip_address(address).packed)
        return ()

    return lookup


def _server_address(server: str) -> tuple[list[str | dns.nameserver.Nameserver], int]:
    """``10.96.0.10:53`` as dnspython wants it: the addresses, and the port of all of them."""
    parts = urlsplit(f"//{server}")
    if not parts.hostname:
        raise ValueError(f"{server!r} is not host:port")
    try:
        return [str(ip_address(parts.hostname))], parts.port or 53
    except ValueError as error:
        raise ValueError(f"{server!r} must be an address and a port, such as 10.96.0.10:53: {error}") from error
