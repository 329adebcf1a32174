"""The certificate of the HTTP front, read again when its files change: it is renewed while kvwatch runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import structlog

from kvwatch.errors import ConfigError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate is, and whom to trust."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    """Certificates of the authorities of clients; only clients with such a certificate are answered."""
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2


class Certificate:
    """A server's `ssl.SSLContext`. Raises `ConfigError` when the files cannot be used at first; later the last good one stays."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._changed = self._last_change()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        changed = self._last_change()
        if changed != self._changed:
            self._changed = changed  # whatever comes of it, these files are tried once
            try:
                self._context = self._load()
                _log.info("http.certificate_renewed", cert_file=str(self._files.cert_file))
            except ConfigError as error:
                _log.error("http.certificate_unusable", detail=str(error), kept="the one before")
        return self._context

    def _last_change(self) -> tuple[int, ...]:
        return tuple(map(modified, (self._files.cert_file, self._files.key_file, self._files.client_ca_file)))

    def _load(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = files.minimum
        try:
            context.load_cert_chain(files.cert_file, files.key_file, password="")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigError([f"web.cert_file {files.cert_file}, web.key_file {files.key_file}: {_reason(error)}"]) from error
        if files.client_ca_file is not None:
            try:
                context.load_verify_locations(files.client_ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError([f"client_ca_file {files.client_ca_file}: {_reason(error)}"]) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def modified(path: Path | None) -> int:
    """When a file was changed last, in nanoseconds; -1 for one that is not there."""
    try:
        return 0 if path is None else path.stat().st_mtime_ns
    except OSError:
        return -1


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
