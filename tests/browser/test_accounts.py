"""The hub's pages People and Password, as an administrator and a new user see them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from ..patience import until
from .conftest import USER


def enter(page, site, name, password):
    """Log in without leaving the hub's pages."""
    page.goto(f"{site.url}/hub/login?next=/hub/home")
    page.fill("#username_input", name)
    page.fill("#password_input", password)
    page.click("#login_submit")


def test_an_admin_adds_somebody_who_chooses_a_password_and_is_removed(page, site, chromium, shots):
    page.goto(f"{site.url}/hub/home")
    page.get_by_role("link", name="People").click()
    page.fill("#add-name", "Emmy")
    page.get_by_role("button", name="Add").click()
    password = page.locator("#new-password").inner_text()
    row = page.locator('tr[data-name="emmy"]')
    expect(row).to_contain_text("user")
    page.screenshot(path=shots / "people.png", clip={"x": 0, "y": 0, "width": 1280, "height": 420})
    page.goto(f"{site.url}/hub/people")
    expect(page.locator("#new-password")).to_have_count(0)

    browser = chromium.new_context()
    emmy = browser.new_page()
    enter(emmy, site, "emmy", password)
    expect(emmy.get_by_role("link", name="People")).to_have_count(0)
    emmy.get_by_role("link", name="Password").click()
    emmy.fill("#present", "wrong")
    emmy.fill("#new", "some words in a row")
    emmy.fill("#again", "some words in a row")
    emmy.get_by_role("button", name="Change").click()
    expect(emmy.get_by_role("alert")).to_contain_text("wrong")
    emmy.fill("#present", password)
    emmy.fill("#new", "some words in a row")
    emmy.fill("#again", "some words in a row")
    emmy.get_by_role("button", name="Change").click()
    expect(emmy.get_by_role("status")).to_be_visible()
    emmy.get_by_role("link", name="Home").first.click()
    expect(emmy.get_by_role("link", name="Token")).to_be_visible()
    emmy.locator("#logout").click()
    enter(emmy, site, "emmy", "some words in a row")
    expect(emmy.get_by_role("link", name="Token")).to_be_visible()

    row.get_by_text("Remove ...").click()
    row.get_by_role("button", name="Remove emmy").click()
    expect(page.get_by_role("status")).to_contain_text("emmy")
    expect(row).to_have_count(0)
    emmy.reload()
    expect(emmy.locator("#password_input")).to_be_visible()
    browser.close()


@pytest.mark.full("in the gate an admin adds somebody")
def test_an_admin_makes_another_admin_who_then_sees_the_page(page, site, chromium):
    page.goto(f"{site.url}/hub/people")
    page.fill("#add-name", "lise")
    page.get_by_role("button", name="Add").click()
    password = page.locator("#new-password").inner_text()
    browser = chromium.new_context()
    lise = browser.new_page()
    enter(lise, site, "lise", password)
    expect(lise.get_by_role("link", name="Token")).to_be_visible()
    assert lise.goto(f"{site.url}/hub/people").status == 403
    page.locator('tr[data-name="lise"]').get_by_role("button", name="Make admin").click()
    expect(page.locator('tr[data-name="lise"]')).to_contain_text("No longer admin")
    until(lambda: lise.goto(f"{site.url}/hub/people").status == 200)
    lise.locator(f'tr[data-name="{USER}"]').wait_for()
    page.locator('tr[data-name="lise"]').get_by_role("button", name="No longer admin").click()
    until(lambda: lise.goto(f"{site.url}/hub/people").status == 403)
    browser.close()
