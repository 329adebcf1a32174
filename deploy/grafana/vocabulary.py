"""What both dashboards say alike: states and their colours, policy lines, links, selectors."""

from __future__ import annotations

from typing import Final

from panels import DATASOURCE, Json, value_mappings, variable

STATES: Final = (("healthy", 1, "green"), ("compute_bound", 2, "orange"), ("kv_bound", 3, "red"), ("unknown", 4, "#808080"))
"""State, the number a timeline draws for it, its colour."""
STATE_MAPPINGS: Final = value_mappings(*((number, name, color) for name, number, color in STATES))

STORM_RATIO: Final = 0.10
KV_WATERMARK: Final = 0.90
BY_ENGINE: Final = "instance, target, model_name, engine"


_WATCH: Final = ("job", "namespace", "pod", "instance")
"""What tells one kvwatch from another. Where Prometheus adds no namespace and pod, their variables are "All", which is any or none."""


def selector(*matchers: str) -> str:
    """The label selector every query of kvwatch's series has, and *matchers*."""
    return "{" + ", ".join([*(f'{label}=~"${label}"' for label in _WATCH), *matchers]) + "}"


def of_vllm(*matchers: str) -> str:
    """The label selector every query of vLLM's own series has: they share namespace, pod and model, and have an instance of their own."""
    return (
        "{"
        + ", ".join(
            ['namespace=~"$namespace"', 'pod=~"$pod"', 'model_name=~"$model_name"', 'engine=~"$engine"', 'instance=~"$vllm"', *matchers]
        )
        + "}"
    )


def watch_variables(*, one: bool) -> list[Json]:
    """The variables of `selector`, each narrowed by those before it; *one*: exactly one kvwatch is chosen.

    They are asked of an engine's series: a kvwatch that stands alone may say another namespace and pod there than its own.
    """
    known = ""
    variables = []
    for label, title in zip(_WATCH, ("Job", "Namespace", "Pod", "kvwatch"), strict=True):
        query = f"label_values(kvwatch_state{known and f'{{{known}}}'}, {label})"
        variables.append(variable(label, title, query, every=not (one and label == "instance")))
        known = ", ".join(filter(None, [known, f'{label}=~"${label}"']))
    return variables


def state_number(*matchers: str) -> str:
    """The state of each engine as its number in `STATES`: the state is a label, and a timeline needs a value."""
    members = [f"kvwatch_state{selector(*matchers, f'state={quoted(state)}')} * {number}" for state, number, _ in STATES]
    return f"sum by ({BY_ENGINE}) ({' or '.join(members)})"


def quoted(text: str) -> str:
    """*text* as PromQL writes a string."""
    return f'"{text}"'


def annotation(name: str, expr: str, title: str, text: str) -> Json:
    """A mark on every panel where *expr* has a value; *title* and *text* may name its labels."""
    return {
        "name": name, "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": "blue", "expr": expr, "step": "60s",
        "titleFormat": title, "textFormat": text, "useValueForTime": False,
        "target": {"refId": "Anno", "expr": expr, "interval": "60s", "range": True, "instant": False},
    }  # fmt: skip


def state_changes(*matchers: str) -> Json:
    """Where an engine entered a state that it was not in a minute before."""
    now = selector(*matchers)
    expr = f"(kvwatch_state{now} == 1) unless (kvwatch_state{now} offset 1m == 1)"
    return annotation("State changes", expr, "{{state}}", "{{target}} {{model_name}}/{{engine}}")


def data_link(title: str, url: str) -> Json:
    """A link from a value; *url* may name the labels of its series."""
    return {"title": title, "url": url, "targetBlank": not url.startswith("/d/")}


def to_engine(uid: str, label: str) -> Json:
    """To the dashboard of the engine a value belongs to; *label* is how Grafana names a label of it, with ``%s`` for which."""
    chosen = [f"var-{name}=${{{label % name}:percentencode}}" for name in ("instance", "target", "model_name", "engine")]
    kept = [f"${{{name}:queryparam}}" for name in ("datasource", "job", "namespace", "pod")]
    return data_link("This engine", f"/d/{uid}?" + "&".join(["${__url_time_range}", *kept, *chosen]))


def to_kvwatch(label: str, *, alert: bool = False) -> list[Json]:
    """To the status page and the runbook of the kvwatch a value comes from; with *alert*, to the heading of that alert."""
    address = f"http://${{{label % 'instance'}:raw}}"
    heading = f"#KVWatch${{{label % 'alert'}:raw}}" if alert else ""
    return [data_link("Status page", f"{address}/"), data_link("Runbook", f"{address}/runbook{heading}")]


SERIES: Final = "__field.labels.%s"
"""How a link of a graph names a label of its series."""
ROW: Final = "__data.fields.%s"
"""How a link of a table names a column of its row."""


def links(other_uid: str, other_title: str) -> list[Json]:
    """To the other dashboard with the same variables."""
    return [_link(other_title, f"/d/{other_uid}", "dashboard", same_view=True)]


def kvwatch_links() -> list[Json]:
    """To the status page and the runbook of the one kvwatch that is chosen."""
    return [
        _link("Status page", "http://${instance}/", "external link", same_view=False),
        _link("Runbook", "http://${instance}/runbook", "doc", same_view=False),
    ]


def _link(title: str, url: str, icon: str, *, same_view: bool) -> Json:
    return {
        "type": "link", "title": title, "url": url, "icon": icon, "keepTime": same_view, "includeVars": same_view,
        "targetBlank": not same_view, "tags": [], "asDropdown": False, "tooltip": "",
    }  # fmt: skip
