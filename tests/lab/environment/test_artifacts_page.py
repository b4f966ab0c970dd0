"""A failed job on three hosts: its files on its page, and in the notebook by `%distribute files`."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from ...browser.lab import open_jobs, open_notebook, output_of, run_cell, wait_ran
from ..cluster import LabCluster
from ..pages import WAIT_MS, put_notebook, start_server, stop_server
from ..remains import check_nothing_left
from .data import ready

__all__ = ["ready"]  # a fixture
USER = "paula"
CELL = """%%distribute --nodes 3 --name spoiled
import minicluster as mc
import torch.distributed as dist
(mc.output() / f"rank {mc.rank()}.txt").write_text(f"of {mc.rank()}" * 1000)
dist.init_process_group()
dist.barrier()
if mc.rank() == 1:
    raise ValueError("no luck")
"""
LOOK = """
from minicluster.client.client import JobServiceClient
job = JobServiceClient.from_environment().jobs()[0].id
%distribute files $job
"""
BRING = """
from pathlib import Path
%distribute files $job --to kept
print({path.name: path.read_text()[:4] for path in sorted(Path("kept").iterdir())})
"""
ROWS = [f"rank {rank}.txt" for rank in range(3)]


def test_what_a_failed_job_left(ready: LabCluster, page: Page) -> None:
    start_server(page, ready, USER)
    put_notebook(ready, "spoiled.ipynb", CELL, LOOK, BRING)
    open_notebook(page, ready.url, USER, "spoiled.ipynb")
    wait_ran(run_cell(page, 0), WAIT_MS)
    wait_ran(cell := run_cell(page, 1), WAIT_MS)
    for name in ROWS:
        expect(output_of(cell)).to_contain_text(name)
    wait_ran(bring := run_cell(page, 2), WAIT_MS)
    expect(output_of(bring)).to_contain_text(
        "{'rank 0.txt': 'of 0', 'rank 1.txt': 'of 1', 'rank 2.txt': 'of 2'}"
    )
    downloads(page, ready.url)
    stop_server(page, ready.url)
    check_nothing_left(ready)


def downloads(page: Page, url: str) -> None:
    """Check that the job's page lists the files, and that each can be downloaded."""
    open_jobs(page, url)
    page.get_by_role("row").filter(has_text="spoiled").get_by_role("link", name="Log").click()
    expect(page.locator("#state")).to_have_text("failed")
    rows = page.locator("#file-rows tr")
    expect(rows).to_have_count(3)
    for rank, name in enumerate(ROWS):
        expect(rows.nth(rank)).to_contain_text(name)
        with page.expect_download() as download:
            rows.nth(rank).get_by_role("link", name="Download").click()
        assert download.value.suggested_filename == name
        assert download.value.path().read_text() == f"of {rank}" * 1000
