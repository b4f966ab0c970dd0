"""The pages of served models: figures, the form, versions and the way back; on a narrow screen, with users'
text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from .conftest import USER, Site
from .lab import JOB_MS, JOBS_PATH, open_notebook, run_cell, wait_ran
from .test_runs import is_narrow

pytest.importorskip("litserve")

EVIL = """<img src=x onerror="window.broken = 1">"""
FIRST = """import torch
from sklearn.datasets import load_digits
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
model = torch.nn.Linear(64, 10)
x = images[:1]"""
SERVE = "%serve model --name digits --example x --batch 8"
SECOND = (
    f"model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))\n{SERVE}"
)
BROKEN = f"""class Broken(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(64, 10)
    def __setstate__(self, state):
        raise OSError({EVIL!r})
model = Broken()
{SERVE}"""


def test_a_model_is_tried_on_its_page(page: Page, session: BrowserContext, site: Site) -> None:
    models = shows_a_model(page, session, site)
    expect(models.locator("#summary")).to_contain_text("a higher accuracy replaces it")
    models.get_by_role("button", name="Auto off").click()
    expect(models.locator("#summary")).not_to_contain_text("accuracy")
    tries_the_form(models)
    assert is_narrow(models)
    stops(models)


@pytest.mark.full("in the gate the page shows one version; tests/service/api/jobs/test_models changes it")
def test_versions_change_on_the_page(page: Page, session: BrowserContext, site: Site, shots: Path) -> None:
    models = shows_a_model(page, session, site)
    wait_ran(run_cell(page, 2), 2 * JOB_MS)
    versions = models.locator("#versions tbody tr")
    expect(versions.first).to_contain_text("answers")
    expect(models.locator("#replicas tbody tr")).to_have_count(1, timeout=JOB_MS)
    tries_the_form(models)
    models.evaluate("window.scrollTo(0, 0)")
    models.screenshot(path=shots / "model.png", full_page=True)
    models.get_by_role("button", name="Back to version 1").click()
    expect(versions.last).to_contain_text("answers", timeout=JOB_MS)
    expect(models.locator("#history")).to_contain_text("version 1, by admin")
    wait_ran(run_cell(page, 3), 2 * JOB_MS)
    expect(versions.first).to_contain_text(EVIL)
    assert models.evaluate("window.broken === undefined"), "a user's text ran"
    stops(models)


def shows_a_model(page: Page, session: BrowserContext, site: Site) -> Page:
    """Serve a model from a notebook, and open its page by the list of models."""
    site.put_notebook("model.ipynb", FIRST, f"{SERVE} --auto accuracy:max", SECOND, BROKEN)
    open_notebook(page, site.url, USER, "model.ipynb")
    models = session.new_page()
    models.goto(f"{site.url}{JOBS_PATH}models")
    expect(models.get_by_role("heading", name="Models")).to_be_visible()
    wait_ran(run_cell(page, 0))
    wait_ran(served := run_cell(page, 1), 2 * JOB_MS)
    expect(served.locator(".jp-OutputArea")).to_contain_text("answers/admin/digits/")
    row = models.locator("#models tbody tr").filter(has_text="digits").filter(has_text="serving")
    row.get_by_role("link").click()
    return models


def stops(models: Page) -> None:
    models.on("dialog", lambda dialog: dialog.accept())
    models.get_by_role("button", name="Stop").click()
    expect(models.locator("#state")).to_have_text("stopped", timeout=JOB_MS)


def tries_the_form(models: Page) -> None:
    """Ask the model by its page's form: with what stands there, by keyboard, and with what is no JSON."""
    expect(models.locator("#state")).to_have_text("serving")
    expect(models.locator("#takes")).to_contain_text("FP32 [any, 64]")
    output, box = models.locator("#output"), models.locator("#input")
    good = box.input_value()
    box.fill("[[1, 2]]")
    models.locator("#ask").click()
    expect(output).to_contain_text("the shape [1, 2]")
    box.fill("{")
    models.locator("#ask").click()
    expect(output).to_contain_text("no JSON")
    box.fill(good)
    models.locator("#ask").focus()
    models.keyboard.press("Enter")
    expect(output).to_have_text(re.compile(r"^\[\s*\[(\s*-?\d+\.\d+(e-?\d+)?,?\s*){10}\]\s*\]$"))
    expect(models.locator("#requests")).not_to_have_text("0")
    expect(models.locator("#p50")).to_have_text(re.compile(r"\d+ ?(ms|s)$"))
