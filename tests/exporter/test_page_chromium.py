"""The status page in a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import pytest
from exporter_views import NOW, SIGNALS, STORMING, UNPOLLED, VIEW, StillClock, failed
from playwright.sync_api import Browser, Dialog, Page, expect
from prometheus_client import CollectorRegistry
from scenes import FLEETS, SCENES, SCHEMES, SIZES, page_named

from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.messages import HttpAnswer
from kvwatch.exporter.web.page import DETAILED_UP_TO, StatusPage
from kvwatch.exporter.web.routes import Sources, make_app
from kvwatch.exporter.web.runbook import runbook
from kvwatch.exporter.web.server import Server, serve
from kvwatch.exporter.web.status import status_json
from kvwatch.model import Cause, EngineId, State, TargetView

pytestmark = pytest.mark.e2e

PATIENCE = 10_000
"""Milliseconds in which a page that refreshes every two seconds must show the news, on a busy machine."""
PHONE, DESK, WALL = (375, 812), (1280, 900), (2560, 1440)


@dataclass
class Watched:
    """A served page whose views a test may change."""

    views: Sequence[TargetView]
    history: ChartHistory = field(default_factory=ChartHistory)
    server: Server | None = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.url


def past_of(views: Sequence[TargetView]) -> ChartHistory:
    history = ChartHistory()
    for second in range(0, 1800, 10):
        for view in views:
            if view.at is not None and not 600 < second < 700:
                history.record(replace(view, at=NOW - 1800.0 + second))
    return history


def quick(view: TargetView) -> TargetView:
    """The view as of a poll every second, so that the page refreshes as fast as it may."""
    return replace(view, interval=1.0)


def proxied(app, below: str):
    """The application as behind a proxy that has it below a path, takes that off, and has nothing else to offer."""

    def proxy(request):
        if not request.path.startswith(below):
            return HttpAnswer(502, (("Content-Length", "0"),))
        return app(replace(request, path=request.path.removeprefix(below)))

    return proxy


@pytest.fixture
def watched():
    """Serve some views; the page's own clock stands still."""
    running: list[Server] = []

    def start(*views: TargetView, below: str = "") -> Watched:
        served = Watched(views, past_of(views))
        clock = StillClock()
        page = StatusPage(lambda: served.views, clock, served.history)
        app = make_app(
            Sources(
                registry=CollectorRegistry(),
                page=page.render,
                status=lambda: status_json(served.views, clock),
                runbook=runbook,
                healthy=lambda: True,
                ready=lambda: True,
            )
        )
        served.server = serve(proxied(app, below), host="127.0.0.1", port=0)
        running.append(served.server)
        return served

    yield start
    for server in running:
        server.close()


@dataclass
class Visit:
    """A tab, and what went on in it."""

    page: Page
    said: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser: Browser):
    contexts = []

    def open_tab(url: str, size: tuple[int, int] = DESK, **context) -> Visit:
        contexts.append(browser.new_context(viewport={"width": size[0], "height": size[1]}, **context))
        tab = Visit(contexts[-1].new_page())

        def dismissed(dialog: Dialog) -> None:
            tab.said.append(dialog.message)
            dialog.dismiss()

        tab.page.on("console", lambda message: tab.said.append(message.text))
        tab.page.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.page.on("dialog", dismissed)
        tab.page.on("request", lambda request: tab.requested.append(request.url))
        tab.page.goto(url)
        return tab

    yield open_tab
    for context in contexts:
        context.close()


def healthy(view: TargetView = VIEW) -> TargetView:
    verdict = replace(STORMING.verdict, state=State.HEALTHY, cause=Cause.OK, evidence=("3 running, nothing waits",), since=NOW)
    return replace(view, assessments=(replace(STORMING, verdict=verdict, alerts=(), advice=()),))


def compute_bound(view: TargetView = VIEW) -> TargetView:
    verdict = replace(STORMING.verdict, state=State.COMPUTE_BOUND, cause=Cause.SEQUENCE_SLOTS, evidence=("8 of 8 slots taken",))
    return replace(view, assessments=(replace(STORMING, verdict=verdict, signals=replace(SIGNALS, kv_usage=0.4), alerts=(), advice=()),))


ALL_STATES = (
    VIEW,
    replace(healthy(), name="vllm-1"),
    replace(compute_bound(), name="vllm-2"),
    replace(failed(), name="vllm-3"),
)
MANY = tuple(replace((VIEW, healthy(), compute_bound(), failed())[number % 4], name=f"vllm-{number}") for number in range(40))


def test_every_state_is_shown_as_a_word_and_in_a_colour_of_its_own(watched, visit):
    tab = visit(watched(*ALL_STATES).url)
    pills = tab.page.locator(".overview .pill")
    assert [word.split(maxsplit=1)[1] for word in pills.all_inner_texts()] == ["Down", "KV-bound", "Compute-bound", "Healthy"]
    colours = pills.evaluate_all("pills => pills.map(pill => getComputedStyle(pill).backgroundColor)")
    assert len(set(colours)) == 4
    assert tab.page.locator("section.engine").count() == 4
    assert tab.page.locator(".chart svg path.limit").count() == 4


def test_the_page_asks_only_its_own_server_and_has_nothing_to_complain_about(watched, visit):
    served = watched(*map(quick, ALL_STATES))
    tab = visit(served.url)
    served.views = (quick(VIEW),)
    expect(tab.page.locator("section.engine")).to_have_count(1, timeout=PATIENCE)
    hosts = {urlsplit(url).netloc for url in tab.requested if not url.startswith("data:")}
    assert hosts == {urlsplit(served.url).netloc}
    assert tab.said == []


def test_news_arrive_without_losing_scroll_focus_selection_of_details_or_place_in_the_table(watched, visit):
    served = watched(quick(VIEW), quick(replace(healthy(), name="vllm-1")))
    tab = visit(served.url, PHONE)
    page = tab.page
    page.locator("#always-summary").click()
    page.locator("#always-summary").focus()
    page.evaluate("scrollTo(0, 700)")
    page.evaluate("document.getElementById('overview-scroll').scrollTo(30, 0)")
    before = page.evaluate("[scrollY, document.getElementById('overview-scroll').scrollLeft]")
    served.views = (quick(compute_bound()), quick(replace(healthy(), name="vllm-1")))
    expect(page.locator("section.engine.compute_bound")).to_have_count(1, timeout=PATIENCE)
    assert page.evaluate("document.activeElement.id") == "always-summary"
    assert page.evaluate("document.getElementById('always').open") is True
    assert page.evaluate("document.getElementById('overview-scroll').scrollLeft") == before[1]
    # What is above may have changed its height; what the reader looks at must not have jumped to the top.
    assert abs(page.evaluate("scrollY") - before[0]) < 250
    assert tab.said == []


def test_scroll_stays_to_the_pixel_while_nothing_changes_its_height(watched, visit):
    served = watched(quick(VIEW))
    page = visit(served.url, PHONE).page
    page.evaluate("scrollTo(0, 400)")
    page.evaluate("document.querySelector('main').dataset.old = 'yes'")
    expect(page.locator("main[data-old]")).to_have_count(0, timeout=PATIENCE)
    assert page.evaluate("scrollY") == 400


def test_a_change_of_state_is_announced_once_and_reaches_title_and_icon(watched, visit):
    served = watched(quick(VIEW))
    page = visit(served.url).page
    assert page.title() == "(1) 1 KV-bound of 1 · kvwatch"
    icon = page.locator("link[rel=icon]").get_attribute("href")
    served.views = (quick(healthy()),)
    expect(page.get_by_role("status")).to_have_text("healthy", timeout=PATIENCE)
    assert page.title() == "healthy · kvwatch"
    assert page.locator("link[rel=icon]").get_attribute("href") != icon


def test_text_being_selected_is_not_torn_away(watched, visit):
    served = watched(quick(VIEW))
    page = visit(served.url).page
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.evidence'))")
    page.evaluate("document.querySelector('main').dataset.old = 'yes'")
    page.wait_for_timeout(4500)  # two refreshes would have come
    assert page.locator("main[data-old]").count() == 1
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("main[data-old]")).to_have_count(0, timeout=PATIENCE)


def test_a_server_that_is_gone_is_said_and_what_was_shown_stays(watched, visit):
    served = watched(quick(VIEW))
    page = visit(served.url).page
    expect(page.locator("#lost")).to_be_hidden()
    served.server.close()
    expect(page.locator("#lost")).to_be_visible(timeout=PATIENCE)
    assert page.locator("section.engine").count() == 1


def test_without_javascript_everything_is_there_sorting_works_and_the_page_reloads_itself(watched, visit):
    served = watched(*MANY)
    page = visit(f"{served.url}/?sort=state", java_script_enabled=False).page
    assert page.locator(".overview tbody tr").count() == len(MANY) > DETAILED_UP_TO
    page.locator("#sort-target").click()
    assert page.locator(".overview tbody td.target").first.inner_text() == "vllm-0"
    page.locator("#sort-target").click()
    assert page.locator(".overview tbody td.target").first.inner_text() == "vllm-39"
    page.locator(".overview tbody th a").first.click()
    assert page.locator("section.engine").count() == 1
    served.views = (healthy(VIEW), *MANY[1:])
    with closing(served.server), page.expect_navigation(timeout=15_000):
        pass


def test_what_is_sought_stays_in_the_address_and_in_the_box(watched, visit):
    served = watched(*map(quick, MANY))
    page = visit(served.url).page
    page.locator("#q").fill("vllm-3")
    page.evaluate("document.querySelector('main').dataset.old = 'yes'")
    expect(page.locator("main[data-old]")).to_have_count(0, timeout=PATIENCE)
    assert page.locator("#q").input_value() == "vllm-3"
    page.locator("#find").click()
    page.wait_for_url("**/?q=vllm-3")
    assert page.locator(".overview tbody tr").count() == len([view for view in MANY if "vllm-3" in view.name])
    page.locator("#all").click()
    assert page.locator(".overview tbody tr").count() == len(MANY)


def test_without_javascript_a_count_is_a_link_to_those_engines(watched, visit):
    page = visit(watched(*MANY).url, java_script_enabled=False).page
    page.locator("#count-kv_bound").click()
    assert page.url.endswith("/?state=kv_bound")
    assert page.locator(".overview tbody tr").count() == page.locator(".overview tbody tr.kv_bound").count() == 10


def test_below_a_path_of_a_proxy_links_and_refreshing_work(watched, visit):
    served = watched(*map(quick, MANY), below="/gpu-1/kvwatch")
    here = f"{served.url}/gpu-1/kvwatch/"
    tab = visit(here)
    tab.page.locator("#sort-target").click()
    tab.page.locator(".overview tbody th a").first.click()
    expect(tab.page.locator("section.engine.kv_bound")).to_have_count(1)
    served.views = (quick(healthy()), *map(quick, MANY[1:]))
    tab.page.locator("#back").click()
    tab.page.locator("#to-status").click()
    assert '"targets":' in tab.page.locator("body").inner_text()
    tab.page.go_back()
    expect(tab.page.locator(".count.kv_bound b")).to_have_text("9", timeout=PATIENCE)
    assert all(url.startswith((here, "data:")) for url in tab.requested)
    assert tab.said == []


def test_the_page_can_be_used_by_keyboard_alone(watched, visit):
    page = visit(watched(*MANY).url).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    while page.evaluate("document.activeElement.id") != "sort-state":  # past the search and the table's own stop
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "sort-engine"
    page.keyboard.press("Enter")
    page.wait_for_url("**/?sort=engine")


HOSTILE = (
    "<script>window.pwned = 1; alert(1)</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "javascript:window.pwned=1",
    "x" * 4096,
    "\u202e\u05d3\u05d5\u05d2\u05de\u05d4 right to left",
    "\U0001f642\U0001f1e9\U0001f1ea" * 50,
)


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_hostile_names_are_inert_and_do_not_widen_the_page(watched, visit, size):
    views = []
    for position, name in enumerate(HOSTILE):
        verdict = replace(STORMING.verdict, engine=EngineId(name, name), evidence=(name,))
        views.append(quick(replace(VIEW, name=f"{name}{position}", url=name, assessments=(replace(STORMING, verdict=verdict),))))
    tab = visit(watched(*views).url, size)
    tab.page.evaluate("document.querySelector('main').dataset.old = 'yes'")
    expect(tab.page.locator("main[data-old]")).to_have_count(0, timeout=PATIENCE)
    assert tab.page.evaluate("window.pwned") is None
    assert tab.said == []
    assert tab.page.locator("section.engine").count() == len(HOSTILE)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= size[0]


SCREENS = [
    pytest.param(ALL_STATES, PHONE, "light", id="details on a phone, light"),
    pytest.param(ALL_STATES, PHONE, "dark", id="details on a phone, dark"),
    pytest.param(ALL_STATES, DESK, "dark", id="details on a desk, dark"),
    pytest.param(ALL_STATES, WALL, "light", id="details on a wall, light"),
    pytest.param(MANY, PHONE, "dark", id="overview on a phone, dark"),
    pytest.param(MANY, DESK, "light", id="overview on a desk, light"),
    pytest.param((UNPOLLED,), DESK, "light", id="a target never polled"),
]


@pytest.fixture
def complaints(request):
    """What axe finds on a page of that address, and how wide the page is; the page's own policy would keep axe out and is lifted."""
    browser, axe = request.getfixturevalue("browser"), request.getfixturevalue("axe")

    def looked_at(url: str, size: tuple[int, int], scheme: str) -> tuple[list[tuple[str, str, str]], int]:
        with closing(browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, bypass_csp=True)) as context:
            page = context.new_page()
            page.set_default_timeout(0)  # a page of 300 targets takes its time on a busy machine
            page.goto(url)
            page.evaluate(axe)
            found = [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in page.evaluate("axe.run()")["violations"]]
            return found, page.evaluate("document.documentElement.scrollWidth")

    return looked_at


@pytest.mark.parametrize(("views", "size", "scheme"), SCREENS)
def test_axe_finds_nothing(complaints, watched, views, size, scheme):
    found, width = complaints(watched(*views).url, size, scheme)
    assert found == []
    assert width <= size[0]


LOOKS = tuple(zip(SIZES.values(), SCHEMES, strict=True))


@pytest.mark.parametrize("name", [*SCENES, *(f"{size}-targets" for size in FLEETS)])
def test_axe_finds_nothing_on_the_page_that_a_scenario_leaves(complaints, tmp_path, name):
    """A browser has no server to ask for news here: what the page says then is looked at too."""
    (tmp_path / "page.html").write_bytes(page_named(name).render("").body)
    for size, scheme in LOOKS[-1:] if name == "300-targets" else LOOKS:  # axe takes its time for hundreds of rows
        found, width = complaints((tmp_path / "page.html").as_uri(), size, scheme)
        assert (found, width) == ([], size[0]), (size, scheme)


def test_the_policy_keeps_foreign_scripts_and_styles_out(watched, visit):
    tab = visit(watched(VIEW).url)
    tab.page.evaluate("""() => {
        const script = document.createElement("script"); script.textContent = "window.pwned = 1"; document.body.append(script);
        const style = document.createElement("style"); style.textContent = "body { display: none }"; document.body.append(style);
    }""")
    assert tab.page.evaluate("window.pwned") is None
    assert tab.page.locator("body").is_visible()
    assert any("Content Security Policy" in message for message in tab.said)
