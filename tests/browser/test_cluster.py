"""The page Cluster: what machines do, who had which slots, by mouse and by keyboard, in both themes."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from ..patience import until
from .conftest import USER
from .lab import JOBS_PATH, open_notebook, run_cell, wait_ran

HOLDS = """%%distribute --nodes 2 --name holds --timeout 1h --detach
import time
time.sleep(3600)
"""
WAITS = """%%distribute --nodes 3 --name waits --timeout 1h --detach
print("late")
"""
READINGS = """async (id) => {
  const { ask } = await import(`${document.getElementById("minicluster").dataset.url}static/service.js`);
  const { ranks } = await ask(`api/runs/${id}/readings`);
  return ranks.length === 2 && ranks;
}"""
GPU = {
    "gpu": "GPU-a",
    "model": "NVIDIA GeForce RTX 3060",
    "use_percent": 87.0,
    "memory_bytes": 7_900_000_000,
    "memory_total_bytes": 12_000_000_000,
    "temperature_c": 71.0,
    "power_w": 148.2,
    "power_limit_w": 170.0,
}


def machine(name: str, cpu: float, *gpus: dict[str, object]) -> dict[str, object]:
    """Return a machine with GPUs, which the test's own machine lacks."""
    reading = {
        "ago_s": 1.0,
        "cpu_percent": cpu,
        "cores": 16.0,
        "memory_bytes": 21_000_000_000,
        "memory_total_bytes": 64_000_000_000,
        "received_bytes_s": 61_000_000.0,
        "sent_bytes_s": 4_000_000.0,
        "gpus": list(gpus),
    }
    fields = ["cpu_percent", "memory_bytes", "gpu0_use_percent", "gpu0_power_w"]
    return {"name": name, "nodes": [name], "at": 1.0, "reading": reading, "fields": fields}


@pytest.fixture
def cluster(page, site):
    page.goto(f"{site.url}{JOBS_PATH}cluster")
    yield page
    page.unroute_all()


def test_the_page_shows_what_the_machine_does_now_and_did_before(cluster):
    expect(cluster.locator("#machines .card")).to_contain_text("localhost is node-1, node-2, node-3")
    cpu = cluster.get_by_role("progressbar", name="CPU")
    expect(cpu).to_have_attribute("aria-valuenow", re.compile(r"\d+"))
    expect(cluster.locator("#machines")).to_contain_text(re.compile(r"[0-9.]+ GB of [0-9.]+ GB"))
    expect(cluster.locator("#charts h3")).to_have_text(["CPU", "Memory", "Network in", "Network out"])
    expect(cluster.locator("#charts canvas")).to_have_count(4)
    expect(cluster.get_by_role("img", name=re.compile(r"^CPU: localhost \d+ %$"))).to_be_visible()
    expect(cluster.locator("#summary")).to_contain_text("3 of 3 nodes up")


def test_the_former_address_leads_there(page, site):
    page.goto(f"{site.url}{JOBS_PATH}nodes")
    expect(page).to_have_url(f"{site.url}{JOBS_PATH}cluster")
    expect(page.get_by_role("link", name="Cluster")).to_be_visible()


def test_gpus_are_shown_in_their_nodes_card(page, site, shots):
    now = time.time()
    at = [now - 3600 + 12 * index for index in range(300)]
    values = {"gpu0_use_percent": 80.0, "gpu0_power_w": 140.0, "cpu_percent": 30.0, "memory_bytes": 2e10}
    list_ = [machine("node-1", 35.0, GPU), machine("node-2", 8.0, {**GPU, "use_percent": None})]
    page.route("**/api/machines", lambda route: route.fulfill(json={"machines": list_, "now": now}))
    page.route(
        "**/api/machines/*/history?*",
        lambda route: route.fulfill(
            json={
                "name": "x",
                "step_s": 12.0,
                "at": at,
                "fields": [
                    {"name": name, "mean": [value * (0.9 + 0.1 * (index % 7) / 7) for index in range(300)]}
                    for name, value in values.items()
                ],
            }
        ),
    )
    page.goto(f"{site.url}{JOBS_PATH}cluster")
    card = page.locator("#nodes .card").filter(has_text="node-1")
    expect(card).to_contain_text("NVIDIA GeForce RTX 3060 · 71 °C · 148 of 170 W")
    expect(card.get_by_role("progressbar", name="GPU 0", exact=True)).to_have_attribute("aria-valuenow", "87")
    other = page.locator("#nodes .card").filter(has_text="node-2")
    expect(other.get_by_role("progressbar", name="GPU 0", exact=True)).to_have_count(0)
    expect(page.locator("#charts h3")).to_have_text(["GPU use", "GPU power", "CPU", "Memory"])
    expect(page.locator("#machines")).to_be_hidden()
    for theme in ("light", "dark"):
        if page.locator("html").get_attribute("data-bs-theme") != theme:
            page.locator("#dark-theme-toggle").click()
        page.wait_for_timeout(300)
        page.screenshot(path=shots / f"cluster-{theme}.png", full_page=True)
    page.locator("#dark-theme-toggle").click()
    page.unroute_all()


@pytest.mark.full("in the gate the page's nodes follow jobs")
def test_the_timeline_follows_jobs_and_the_keyboard(page, session, site, shots):
    site.put_notebook("holds.ipynb", HOLDS, WAITS)
    cluster = session.new_page()
    cluster.goto(f"{site.url}{JOBS_PATH}cluster")
    open_notebook(page, site.url, USER, "holds.ipynb")
    wait_ran(run_cell(page, 0))
    bars = cluster.locator("#timeline a.mc-bar")  # Those of earlier tests' jobs, too.
    own = cluster.locator("#timeline a.mc-bar[aria-label*='(holds)']")
    expect(own).to_have_count(2)
    job_id = int(re.findall(r"job (\d+)", own.first.get_attribute("aria-label"))[0])
    ranks = until(lambda: cluster.evaluate(READINGS, job_id))
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert {field["name"] for field in ranks[0]["fields"]} == {"cpu_percent", "memory_bytes"}
    assert ranks[1]["fields"][1]["high"][-1] > 10_000_000, "a rank has imported torch"
    wait_ran(run_cell(page, 1))
    expect(cluster.locator("#waiting li")).to_contain_text("(waits)")
    own.first.hover()
    expect(cluster.locator("#timeline-told")).to_contain_text(
        re.compile(r"job \d+ \(holds\) of admin: 1 slot")
    )
    cluster.locator("#timeline-range").focus()
    cluster.keyboard.press("Tab")
    expect(bars.first).to_be_focused()
    cluster.keyboard.press("ArrowRight")
    expect(bars.nth(1)).to_be_focused()
    cluster.screenshot(path=shots / "timeline.png", full_page=True)
    cluster.get_by_role("button", name="Earlier").click()
    expect(cluster.locator("#timeline .mc-now")).to_have_count(0)
    cluster.get_by_role("button", name="Now", exact=True).click()
    expect(cluster.locator("#timeline .mc-now")).to_have_count(1)


def test_the_page_fits_a_phone(page, site, shots):
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        page.goto(f"{site.url}{JOBS_PATH}cluster")
        expect(page.locator("#charts canvas").first).to_be_visible()
        page.screenshot(path=shots / "cluster-phone.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        page.set_viewport_size({"width": 1280, "height": 720})
