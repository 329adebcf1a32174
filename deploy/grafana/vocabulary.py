"""What both dashboards say alike: states and their colours, policy lines, links, selectors."""

from __future__ import annotations

from typing import Final

from panels import Json, value_mappings

STATES: Final = (("healthy", 1, "green"), ("compute_bound", 2, "orange"), ("kv_bound", 3, "red"), ("unknown", 4, "#808080"))
"""State, the number a timeline draws for it, its colour."""
STATE_MAPPINGS: Final = value_mappings(*((number, name, color) for name, number, color in STATES))

STORM_RATIO: Final = 0.10
KV_WATERMARK: Final = 0.90
BY_ENGINE: Final = "instance, target, model_name, engine"


def selector(*matchers: str) -> str:
    """The label selector every query has (job and instance), and *matchers*."""
    return "{" + ", ".join(['job=~"$job"', 'instance=~"$instance"', *matchers]) + "}"


def state_number(*matchers: str) -> str:
    """The state of each engine as its number in `STATES`: the state is a label, and a timeline needs a value."""
    members = [f"kvwatch_state{selector(*matchers, f'state={quoted(state)}')} * {number}" for state, number, _ in STATES]
    return f"sum by ({BY_ENGINE}) ({' or '.join(members)})"


def quoted(text: str) -> str:
    """*text* as PromQL writes a string."""
    return f'"{text}"'


def links(other_uid: str, other_title: str) -> list[Json]:
    """To the other dashboard with the same variables, and to the runbook that the chosen kvwatch serves."""
    return [
        _link(other_title, f"/d/{other_uid}", "dashboard", same_view=True),
        _link("Runbook", "http://${instance}/runbook", "doc", same_view=False),
    ]


def _link(title: str, url: str, icon: str, *, same_view: bool) -> Json:
    return {
        "type": "link", "title": title, "url": url, "icon": icon, "keepTime": same_view, "includeVars": same_view,
        "targetBlank": not same_view, "tags": [], "asDropdown": False, "tooltip": "",
    }  # fmt: skip
