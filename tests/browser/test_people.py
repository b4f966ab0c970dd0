"""Administrators' tables and buttons for quotas and reservations."""

from __future__ import annotations

from datetime import datetime, timedelta

from playwright.sync_api import expect

from .conftest import USER
from .lab import JOBS_PATH


def at(moment: datetime) -> str:
    """Return a time in the format of a time field."""
    return moment.strftime("%Y-%m-%dT%H:%M")


def test_an_admin_drains_a_node_and_lets_it_take_jobs_again(page, site):
    page.goto(f"{site.url}{JOBS_PATH}cluster")
    card = page.locator("#nodes .card").filter(has_text="node-1")
    line = page.locator("#drains [data-node=node-1]")
    page.once("dialog", lambda dialog: dialog.accept("a new disk"))
    line.get_by_role("button", name="Drain").click()
    expect(card.locator(".card-header .badge")).to_have_text("closed")
    expect(card).to_contain_text("a new disk")
    drained = page.locator("#reservations tbody tr").filter(has_text="node-1")
    expect(drained).to_contain_text(USER)
    line.get_by_role("button", name="Let it take jobs again").click()
    expect(card.locator(".card-header .badge")).to_have_text("up")
    expect(drained.get_by_role("button", name="Cancel")).to_have_count(0)


def test_an_admin_reserves_slots_and_takes_them_back(page, site, shots):
    page.goto(f"{site.url}{JOBS_PATH}cluster")
    page.locator("#reservation-holder").fill("group:vision")
    page.locator("#reservation-slots").fill("2")
    page.locator("#reservation-note").fill("a course")
    page.locator("#reservation-ends").fill(at(datetime.now() - timedelta(days=1)))
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_be_visible()
    begins = datetime.now() + timedelta(days=1)
    page.locator("#reservation-begins").fill(at(begins))
    page.locator("#reservation-ends").fill(at(begins + timedelta(hours=3)))
    page.get_by_role("button", name="Create").click()
    row = page.locator("#reservations tbody tr").filter(has_text="a course")
    expect(row).to_contain_text("2 slots")
    expect(row).to_contain_text("vision")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.screenshot(path=shots / "reserved.png", clip={"x": 0, "y": 0, "width": 1280, "height": 600})
    row.get_by_role("button", name="Cancel").click()
    expect(row.get_by_role("button", name="Cancel")).to_have_count(0)


def held_back(page, path):
    """Delay the page's request; return the function that releases it."""
    waiting = []
    page.route(f"**{JOBS_PATH}{path}*", lambda request: waiting.append(request))

    def go_on():
        for request in waiting:
            request.continue_()
        page.unroute(f"**{JOBS_PATH}{path}*")

    return go_on


def test_quotas_that_come_late_take_no_line_away(page, site):
    go_on = held_back(page, "api/quotas")
    page.goto(f"{site.url}{JOBS_PATH}queue")
    expect(page.get_by_role("button", name="Add a line")).to_be_disabled()
    go_on()
    page.get_by_role("button", name="Add a line").click()
    expect(page.locator("#limits tbody tr").last.get_by_label("slots", exact=True)).to_be_visible()


def test_a_refusal_stays_when_another_part_of_the_page_has_loaded(page, site):
    go_on = held_back(page, "api/policy")
    page.goto(f"{site.url}{JOBS_PATH}queue")
    page.get_by_role("button", name="Add a line").click()
    line = page.locator("#limits tbody tr").last
    line.get_by_label("holder").fill("group:vision")
    line.get_by_label("slots", exact=True).fill("two")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("group:vision.slots")
    go_on()
    expect(page.locator("#active-policy")).not_to_be_empty()
    expect(page.get_by_role("alert")).to_contain_text("group:vision.slots")


def test_an_admin_gives_a_quota_that_stays(page, site):
    page.goto(f"{site.url}{JOBS_PATH}queue")
    page.get_by_role("button", name="Add a line").click()
    line = page.locator("#limits tbody tr").last
    line.get_by_label("holder").fill("group:vision")
    line.get_by_label("slots", exact=True).fill("two")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("group:vision.slots")
    line.get_by_label("slots", exact=True).fill("2")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#limits-by")).to_contain_text(USER)
    expect(page.get_by_role("alert")).to_be_hidden()
    page.reload()
    kept = page.locator("#limits [data-holder='group:vision']")
    expect(kept.get_by_label("slots", exact=True)).to_have_value("2")
    # A button moves while what is above it still loads, and then a click misses it.
    expect(page.locator("#active-policy")).not_to_be_empty()
    expect(page.locator("#me")).to_be_visible()
    kept.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Save").click()
    expect(kept).to_have_count(0)
