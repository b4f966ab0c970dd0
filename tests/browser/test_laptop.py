"""A user's own JupyterLab: paste a token from the hub's page below the cell, and see the panel."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from .. import messages
from ..hub.clusters import free_port
from ..hub.laptop import environ_in
from .conftest import Site, write_notebook
from .lab import JOB_MS, START_MS, output_of, run_cell, show_notebook, wait_ran

TRAIN = """%%distribute --nodes 3
import time
import torch
import minicluster as mc
for step in range(30):
    mc.log(step=step, loss=2 / (2 + step))
    time.sleep(0.02)
print("hello from rank", mc.rank())
answer = torch.arange(3)
"""


@contextmanager
def jupyter_in(home: Path) -> Iterator[str]:
    """Run a JupyterLab without any setting of the hub; yield its address with its login token."""
    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += [f"--IdentityProvider.token={token}", "--ServerApp.port_retries=0"]
    with (home / "jupyter.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, env=environ_in(home), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_MS / 1000
        while not answers(port):
            assert process.poll() is None, (home / "jupyter.log").read_text()
            assert time.monotonic() < deadline, "JupyterLab does not answer"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/?token={token}"
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api", trust_env=False).is_success
    except httpx.TransportError:
        return False


def make_token(page: Page, site: Site, shots: Path) -> str:
    """Create a token as described in docs/laptop.md."""
    page.set_viewport_size({"width": 1100, "height": 640})
    page.goto(f"{site.url}/hub/token")
    page.get_by_role("button", name="Fill in").click()
    page.get_by_label("Token expires in").select_option(label="1 Month")
    page.screenshot(path=shots / "token.png")
    page.get_by_role("button", name="Request new API token").click()
    made = page.locator("#token-result")
    expect(made).to_be_visible()
    return made.inner_text().strip()


@pytest.mark.full("tests/hub/test_laptop has it without a page")
def test_a_laptops_notebook_trains_on_the_cluster(
    page: Page, chromium: Browser, site: Site, tmp_path: Path, shots: Path
) -> None:
    token = make_token(page, site, shots)
    connect = f"%distribute connect {site.url}/hub/home"
    seen = tmp_path / "seen"
    wait = f"import os\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.02)\n"
    write_notebook(tmp_path / "mine.ipynb", "%load_ext minicluster", connect, TRAIN + wait, "answer")
    # Use a separate profile, since cookies ignore ports.
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    laptop = context.new_page()
    with jupyter_in(tmp_path) as address:
        laptop.goto(address)
        show_notebook(laptop, address.split("/?")[0], "mine.ipynb")
        laptop.keyboard.press("Control+b")
        wait_ran(run_cell(laptop, 0))
        connecting = run_cell(laptop, 1)
        field = connecting.locator("input[type=password]")
        expect(field).to_be_visible(timeout=START_MS)
        field.fill(token)
        field.press("Enter")
        wait_ran(connecting)
        expect(output_of(connecting)).to_contain_text(
            messages.CONNECTED.format(hub=f"{site.url}/", user="admin")
        )
        expect(output_of(connecting)).to_contain_text("saved in ~/.config/minicluster/clusters.json")
        expect(output_of(connecting)).not_to_contain_text(token)
        training = run_cell(laptop, 2)
        expect(training.locator(".mc-panel")).to_contain_text(
            messages.RUNNING.format(ranks=3), timeout=JOB_MS
        )
        seen.touch()
        wait_ran(training)
        expect(training.locator(".mc-picture")).to_contain_text("hello from rank 0")
        expect(training.locator(".mc-picture img[alt^='Plot of']")).to_be_visible()
        expect(output_of(run_cell(laptop, 3))).to_contain_text("tensor([0, 1, 2])")
        connecting.evaluate("cell => cell.scrollIntoView({block: 'start'})")
        laptop.screenshot(path=shots / "connect.png")
    context.close()
