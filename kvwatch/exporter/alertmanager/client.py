"""One POST to one Alertmanager: what may go wrong is an answer here, never an exception, and never names a credential."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import requests
from urllib3.exceptions import HTTPError

from kvwatch import __version__
from kvwatch.clock import Clock
from kvwatch.config.settings import AlertmanagerSettings
from kvwatch.errors import ScrapeError
from kvwatch.text import printable
from kvwatch.transport.adapter import DeadlineAdapter
from kvwatch.transport.connection import Deadline

_PATH: Final = "/api/v2/alerts"
_DETAIL: Final = 300


class Outcome(StrEnum):
    """How a POST ended."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The content is wrong (400). The good alerts of the batch were stored; sending it again would be refused again."""
    FAILED = "failed"
    """Not reached, or not now."""


Post = Callable[[bytes], tuple[Outcome, str]]
"""Takes a JSON body; says how it ended, and why in one line for a person (empty when accepted)."""


def http_post(url: str, settings: AlertmanagerSettings, clock: Clock) -> Post:
    """A `Post` to the Alertmanager at base ``url``: over within the timeout, whatever the other side does.

    Credentials are read from their files at every call, so they may rotate.
    """
    address = url.rstrip("/") + _PATH

    def post(body: bytes) -> tuple[Outcome, str]:
        try:
            with requests.Session() as session:
                # Neither a proxy nor ~/.netrc from the environment: alerts go where the settings say.
                session.trust_env = False
                session.headers.update(_headers(settings))
                session.verify = True if settings.ca_file is None else str(settings.ca_file)
                adapter = DeadlineAdapter(Deadline(clock, settings.timeout))
                for scheme in ("http://", "https://"):
                    session.mount(scheme, adapter)
                with session.post(address, data=body, timeout=settings.timeout, allow_redirects=False, stream=True) as response:
                    return _outcome(response)
        except ScrapeError as error:
            return Outcome.FAILED, error.detail[:_DETAIL]
        except requests.exceptions.InvalidHeader:
            # Its text quotes the header, and the header is the token.
            return Outcome.FAILED, "the bearer token cannot be sent: it holds characters that no header may hold"
        except UnicodeError:
            return Outcome.FAILED, "a credentials file is not text"
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is counted and tried again later, never thrown
            return Outcome.FAILED, f"{type(error).__name__}: {error}"[:_DETAIL]

    return post


def _headers(settings: AlertmanagerSettings) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": f"kvwatch/{__version__}"}
    if settings.bearer_token_file is not None:
        headers["Authorization"] = f"Bearer {settings.bearer_token_file.read_text(encoding='utf-8').strip()}"
    elif settings.basic_auth is not None:
        password = settings.basic_auth.password_file.read_text(encoding="utf-8").rstrip("\r\n")
        headers["Authorization"] = f"Basic {b64encode(f'{settings.basic_auth.username}:{password}'.encode()).decode()}"
    return headers


def _outcome(response: requests.Response) -> tuple[Outcome, str]:
    if response.status_code // 100 == 2:  # noqa: PLR2004 - every success, whatever its number
        return Outcome.ACCEPTED, ""
    text = _excerpt(response)
    outcome = Outcome.REFUSED if response.status_code == requests.codes.bad_request else Outcome.FAILED
    return outcome, f"HTTP {response.status_code} {text}"[:_DETAIL].rstrip()


def _excerpt(response: requests.Response) -> str:
    """What it says about itself, as far as that can be read: a body that is cut or badly packed changes nothing about the status."""
    try:
        return printable(response.raw.read(_DETAIL, decode_content=True).decode("utf-8", "replace").strip())
    except (HTTPError, OSError, ValueError, ScrapeError):
        return ""
