"""JupyterLab's sidebar of runs, its menu, its commands and its launcher card."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from .conftest import USER
from .lab import JOB_MS, START_MS, choose, open_notebook, run_cell
from .test_home import EVIL, contrast

BEFORE = "kept = 42"
LOGS = f"""%%distribute --nodes 1 --name "beside {EVIL}"
import time
import minicluster as mc
for step in range(3000):
    mc.log(step=step, loss=1 / (step + 1), acc=step)
    time.sleep(0.1)
"""
SIDE = "#minicluster-runs"


def show(page: Page) -> Locator:
    page.locator('.jp-SideBar .lm-TabBar-tab[data-id="minicluster-runs"]').click()
    side = page.locator(SIDE)
    expect(side).to_be_visible()
    return side


def test_runs_beside_the_notebook(page, session, site):
    site.put_notebook("beside.ipynb", BEFORE, LOGS)
    open_notebook(page, site.url, USER, "beside.ipynb")
    sockets: list[str] = []
    page.on("websocket", lambda one: sockets.append(one.url) if "/minicluster/" in one.url else None)
    side = show(page)
    run_cell(page, 1)
    run = side.locator("section").filter(has_text="This notebook").locator("li").first
    expect(run).to_contain_text("running", timeout=JOB_MS)
    expect(run).to_contain_text("beside <img")
    curve = run.locator("polyline")
    expect(curve).to_be_visible(timeout=JOB_MS)
    expect(curve).not_to_have_attribute("points", curve.get_attribute("points") or "", timeout=JOB_MS)
    expect(run).to_contain_text("loss")
    assert len(sockets) <= 1, sockets

    page.locator(".jp-CodeCell").first.locator(".cm-content").click()
    run.locator(".mc-run-name").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".jp-Notebook .jp-Cell.jp-mod-active")).to_contain_text("mc.log")
    with session.expect_page() as opened:
        run.get_by_role("button", name="Page").click()
    number = run.get_attribute("data-run")
    assert opened.value.url.endswith(f"/services/minicluster/runs/{number}")
    opened.value.close()
    run.get_by_role("button", name="Copy rerun").click()
    expect(side.get_by_role("status")).to_contain_text(f"%distribute rerun {number}")
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.get_by_role("menuitem", name="Settings", exact=True).click()
        page.locator(".lm-Menu-itemLabel").filter(has_text=re.compile("^Theme$")).hover()
        page.locator(".lm-Menu-itemLabel").filter(has_text=re.compile(f"^{theme}$")).click()
        expect(page.locator("body")).to_have_attribute("data-jp-theme-name", theme, timeout=START_MS)
        assert contrast(page, f"{SIDE} .mc-run-middle span", SIDE) > 4.5, theme
    run.get_by_role("button", name="Stop").click()
    expect(run).to_contain_text("stopped", timeout=JOB_MS)
    expect(run.get_by_role("button", name="Copy result")).to_be_visible()
    assert page.evaluate("window.broken === undefined")


@pytest.mark.full("in the gate the sidebar opens them")
def test_the_menu_opens_pages_and_the_launcher_has_a_card(page, session, site):
    open_lab(page, f"{site.url}/user/{USER}/lab/workspaces/menu?reset")
    card = page.locator(".jp-LauncherCard").filter(has_text="Cluster Home")
    expect(card).to_be_visible(timeout=START_MS)
    with session.expect_page() as opened:
        choose(page, "Minicluster", "Queue Page")
    assert opened.value.url.endswith("/services/minicluster/queue")
    with session.expect_page() as opened:
        card.click()
    assert opened.value.url.endswith("/services/minicluster/home")
    choose(page, "Minicluster", "Runs Beside the Notebook")
    expect(page.locator(SIDE)).to_be_visible()


def test_an_earlier_release_and_an_error_are_told_calmly(page, site):
    answers = [
        (200, '{"kind": "older"}', "of an earlier release"),
        (200, '{"kind": "none"}', "%distribute connect"),
        (502, '{"message": "the service is away", "code": "unreachable"}', "the service is away"),
    ]
    page.goto(f"{site.url}/user/{USER}/lab/workspaces/calm?reset")
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=START_MS)
    state = {"answer": answers[0]}

    def answer(route: Route) -> None:
        status, body, _ = state["answer"]
        route.fulfill(status=status, content_type="application/json", body=body)

    page.route(re.compile(r"/minicluster/runs(\?|$)"), answer)
    side = show(page)
    for one in answers:
        state["answer"] = one
        side.get_by_role("button", name="Reload").click()
        expect(side.get_by_role("status")).to_contain_text(one[2])
    expect(page.locator(".jp-Dialog")).to_have_count(0)


def open_lab(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=START_MS)
