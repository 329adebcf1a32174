"""``--config.check`` looks at what the settings name, not only at the settings."""

from __future__ import annotations

import pytest

from kvwatch.config.settings import Settings
from kvwatch.daemon.process import check
from kvwatch.errors import ConfigError

GONE = "/nonexistent/file"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"web": {"cert_file": GONE, "key_file": GONE}}, f"web.cert_file {GONE}, web.key_file {GONE}: No such file or directory"),
        ({"web": {"config": {"file": GONE}}}, f"{GONE}: No such file or directory"),
        ({"poll": {"bearer_token_file": GONE}}, f"poll.bearer_token_file {GONE}: it cannot be read"),
        ({"poll": {"ca_file": GONE}}, f"poll.ca_file {GONE}: it cannot be read"),
        ({"alertmanager": {"bearer_token_file": GONE}}, f"alertmanager.bearer_token_file {GONE}: it cannot be read"),
        ({"baseline": GONE}, f"baseline {GONE}: No such file or directory"),
        (
            {"alertmanager": {"basic_auth": {"username": "a", "password_file": GONE}}},
            f"alertmanager.basic_auth.password_file {GONE}: it cannot be read",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(sections, said):
    with pytest.raises(ConfigError) as caught:
        check(Settings(**sections))
    assert caught.value.errors == (said,)


def test_a_name_server_that_is_none_is_found():
    with pytest.raises(ConfigError, match=r"^discovery\.dns_server: "):
        check(Settings(targets=["dns+http://vllm:8000/metrics"], discovery={"dns_server": "none"}))


def test_everything_is_found_at_once_and_nothing_where_all_is_well():
    with pytest.raises(ConfigError) as caught:
        check(Settings(poll={"ca_file": GONE, "bearer_token_file": GONE}, web={"config": {"file": GONE}}))
    assert len(caught.value.errors) == 3
    check(Settings())
