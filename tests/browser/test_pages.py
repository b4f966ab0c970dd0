"""The service's pages: updated without a reload, in the hub's style; users' text is escaped."""

from __future__ import annotations

import hashlib
import re

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Request, expect

from minicluster.wire import ImageState, Pin, Recipe
from minicluster_hub.jobs.records import ImageRecord
from minicluster_hub.store import Store

from .. import messages
from ..patience import until
from ..processes import has_word
from .conftest import USER, Site
from .lab import (
    JOB_MS,
    JOBS_PATH,
    STOP_MS,
    ask_why,
    log_in,
    open_jobs,
    open_notebook,
    output_of,
    run_cell,
    wait_ran,
)

TALKING = """%%distribute --nodes 2 --name digits
import os
import time
for step in range(600):
    print(f"rank {os.environ['RANK']}, step {step}, loss {2 / (2 + step):.4f}", flush=True)
    time.sleep(0.1)
"""
# A script that is put in as HTML does not run, an image's handler does: both are tried.
EVIL = """<script>window.broken = 1</script><img src=x onerror="window.broken = 1">"""
ANSWER_LATE = """(() => {
  const ask = window.fetch;
  window.fetch = async (...request) => {
    const answer = await ask(...request);
    if (String(request[0]).endsWith("/stop")) {
      while (document.querySelector("#state").textContent.trim() !== "stopped") {
        await new Promise((go) => setTimeout(go, 50));
      }
      setTimeout(() => (document.body.dataset.stopAnswered = "yes"), 500);
    }
    return answer;
  };
})()"""
"""The answer to Stop arrives after the stream's event of the job's end."""
SEEN = """(state) => {
  Object.defineProperty(document, "visibilityState", { get: () => state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Has the page believe that it is visible, or hidden."""
WRONG = f"""%%distribute --nodes 2 --name wrong
print({EVIL!r})
raise ValueError({EVIL!r})
"""
LEAVING = """%%distribute --nodes 2 --name leaving
import minicluster as mc
(mc.output() / "plots").mkdir()
(mc.output() / "plots" / "loss résumé.csv").write_text(f"step,loss\\n{mc.rank()},1.5\\n")
if mc.rank() == 0:
    (mc.output() / "weights.bin").write_bytes(bytes(2_500_000))
"""
ODD = "a#b?c=100%&<img src=x onerror='window.broken = 1'>.txt"
LEAVING_ODD = f"""%%distribute --nodes 1 --name odd-files
import minicluster as mc
(mc.output() / {ODD!r}).write_text("odd")
(mc.output() / "away").symlink_to("/etc/hostname")
"""

LEAVING_MANY = """%%distribute --nodes 1 --name many-files
import minicluster as mc
for number in range(450):
    (mc.output() / f"{number:03}").touch()
"""


def offer(site: Site, name: str, description: str, **packages: str) -> None:
    """Add a published image to the catalogue, as this engine has none. packages: with versions."""
    digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    recipe = Recipe(
        packages=tuple(Pin(name=package, version=version) for package, version in packages.items()),
        python="3.12",
        machine="x86_64",
        layer_sha256="1" * 64,
        layer_bytes=10,
        diff_sha256="2" * 64,
    )
    where = f"127.0.0.1:5100/minicluster/published/grace/{name}@{digest}"
    record = (digest, name, where, "grace", description, "cpu", 812_000_000, digest, recipe)
    store = Store.open(f"sqlite:///{site.cluster.data / 'service' / 'minicluster.sqlite'}")
    store.images.publish(ImageRecord(*record, ImageState.PENDING, created_at=1.0, changed_at=1.0))
    store.close()


def mark(page: Page) -> None:
    """Set a mark that a reload would remove."""
    page.evaluate("window.mark = 1")


def is_marked(page: Page) -> bool:
    return page.evaluate("window.mark === 1")


def is_broken(page: Page) -> bool:
    return page.evaluate("window.broken !== undefined")


def test_jobs_and_nodes_change_without_a_reload_and_stop_works_there(page, session, site, shots):
    site.put_notebook("talking.ipynb", TALKING)
    notebook, jobs, nodes = page, session.new_page(), session.new_page()
    open_jobs(jobs, site.url)
    nodes.goto(f"{site.url}{JOBS_PATH}cluster")
    expect(nodes.locator("#nodes").get_by_text("node-3")).to_be_visible()
    for live in (jobs, nodes):
        mark(live)
    open_notebook(notebook, site.url, USER, "talking.ipynb")
    talking = run_cell(notebook, 0)
    row = jobs.get_by_role("row").filter(has_text="digits").filter(has_text="running")
    expect(row).to_be_visible(timeout=JOB_MS)
    expect(row).to_contain_text("%distribute attach", timeout=JOB_MS)
    used = nodes.locator("#nodes .card").filter(has_text=f"of {USER}")
    expect(used).to_have_count(2, timeout=JOB_MS)
    jobs.screenshot(path=shots / "jobs.png")
    nodes.screenshot(path=shots / "nodes.png", clip={"x": 0, "y": 0, "width": 1280, "height": 640})
    assert is_marked(jobs)

    row.get_by_role("link", name="Log").click()
    log = jobs.locator("#log")
    expect(log).to_contain_text("rank 0, step 0,")
    mark(jobs)
    ask_why(jobs, messages.ALL_MAKE_PROGRESS, "time.sleep(0.1)")
    expect(jobs.locator("#why-ranks tr")).to_have_count(2)
    expect(log).to_contain_text("rank 0, step 25,", timeout=JOB_MS)
    jobs.screenshot(path=shots / "job.png")
    jobs.evaluate(ANSWER_LATE)
    jobs.get_by_role("button", name="Stop").click()
    expect(jobs.locator("body[data-stop-answered]")).to_be_attached(timeout=STOP_MS)
    wait_ran(talking, STOP_MS)
    expect(jobs.locator("#state")).to_have_text("stopped")
    expect(talking.locator(".mc-picture")).to_contain_text(messages.STOPPED.format(ranks=2))
    expect(used).to_have_count(0, timeout=STOP_MS)
    assert is_marked(jobs)
    assert is_marked(nodes)


def test_a_page_that_nobody_sees_gives_up_its_connection(page, site):
    page.clock.install()
    with page.expect_request(has_events):
        open_jobs(page, site.url)
    with page.expect_event("requestfailed", has_events):
        page.evaluate(SEEN, "hidden")
        page.clock.run_for(30_000)
    with page.expect_request(has_events):
        page.evaluate(SEEN, "visible")
    expect(page.locator("#connection")).to_be_hidden()


def has_events(request: Request) -> bool:
    return "/api/events" in request.url


def test_what_a_cell_prints_and_raises_stays_text(page, session, site):
    site.put_notebook("wrong.ipynb", WRONG)
    open_notebook(page, site.url, USER, "wrong.ipynb")
    wrong = run_cell(page, 0)
    wait_ran(wrong)
    expect(wrong.locator(".mc-picture pre").first).to_contain_text(EVIL)
    expect(output_of(wrong)).to_contain_text(f"ValueError: {EVIL}")
    jobs = session.new_page()
    open_jobs(jobs, site.url)
    row = jobs.get_by_role("row").filter(has_text="wrong")
    expect(row).to_contain_text(f"ValueError: {EVIL}")
    assert not is_broken(jobs)
    row.get_by_role("link", name="Log").click()
    expect(jobs.locator("#log")).to_contain_text(EVIL)
    expect(jobs.locator("#error-message")).to_contain_text(EVIL)
    expect(jobs.locator("#error-traceback")).to_contain_text(EVIL)
    assert not is_broken(jobs)
    assert not is_broken(page)


@pytest.mark.full("a page notices after 40 s of silence")
def test_a_page_goes_on_where_it_was_after_the_job_service_started_anew(page, session, site):
    site.put_notebook("on.ipynb", TALKING)
    open_notebook(page, site.url, USER, "on.ipynb")
    run_cell(page, 0)
    job = session.new_page()
    open_jobs(job, site.url)
    job.get_by_role("row").filter(has_text="running").get_by_role("link", name="Log").click()
    log = job.locator("#log")
    expect(log).to_contain_text("rank 0, step 5,", timeout=JOB_MS)
    mark(job)
    (service,) = (one for one in site.cluster.processes() if has_word(one, "minicluster_hub"))
    service.kill()
    expect(job.locator("#connection")).to_be_visible(timeout=JOB_MS)
    seen = last_step(log)
    expect(job.locator("#connection")).to_be_hidden(timeout=JOB_MS)
    until(lambda: last_step(log) > seen + 5)
    steps = re.findall(r"step (\d+),", log.inner_text())
    assert len(steps) == len(set(steps)), "output came twice"
    assert is_marked(job)


def last_step(log: Locator) -> int:
    return int(re.findall(r"step (\d+),", log.inner_text())[-1])


def downloaded(page: Page, row: Locator) -> tuple[str, str]:
    """Press Download in a row; return the suggested file name and the file's text."""
    with page.expect_download() as download:
        row.get_by_role("link", name="Download").click()
    return download.value.suggested_filename, download.value.path().read_text()


def open_job_of(page: Page, session: BrowserContext, site: Site, name: str, source: str) -> Page:
    """Run a cell to its end, and open the page of its job."""
    site.put_notebook(f"{name}.ipynb", source)
    open_notebook(page, site.url, USER, f"{name}.ipynb")
    wait_ran(run_cell(page, 0))
    jobs = session.new_page()
    open_jobs(jobs, site.url)
    jobs.get_by_role("row").filter(has_text=name).get_by_role("link", name="Log").click()
    return jobs


@pytest.mark.full("tests/service/api/storage/test_artifacts has them without a page")
def test_files_of_a_job_are_on_its_page(page, session, site, shots):
    job = open_job_of(page, session, site, "leaving", LEAVING)
    files = job.locator("#file-rows tr")
    expect(files).to_have_count(3)
    expect(files.filter(has_text="weights.bin")).to_contain_text("2.5 MB")
    expect(job.locator("#files-kept")).to_contain_text("Kept until")
    for part in (0, 1):
        file = files.filter(has_text="plots/loss résumé.csv").filter(has_text=f"task {part}")
        assert downloaded(job, file) == ("loss résumé.csv", f"step,loss\n{part},1.5\n")
    job.locator("#files").screenshot(path=shots / "files.png")


@pytest.mark.full("tests/hub/test_files and test_downloads have the names")
def test_a_file_of_any_name_comes_and_stays_text(page, session, site):
    job = open_job_of(page, session, site, "odd-files", LEAVING_ODD)
    files = job.locator("#file-rows tr")
    expect(files).to_have_count(1)
    expect(files).to_contain_text(ODD)
    expect(job.locator("#files-kept")).to_contain_text("away")
    assert downloaded(job, files)[1] == "odd"
    assert not is_broken(job)


@pytest.mark.full("tests/hostile/requests/test_lists has the pages of the list without a browser")
def test_many_files_are_shown_page_by_page(page, session, site):
    job = open_job_of(page, session, site, "many-files", LEAVING_MANY)
    files, more = job.locator("#file-rows tr"), job.get_by_role("button", name="Show more")
    for count in (200, 400):
        expect(files).to_have_count(count)
        expect(job.locator("#files-kept")).to_contain_text(f"The first {count} files.")
        more.click()
    expect(files).to_have_count(450)
    expect(files.last).to_contain_text("449")
    expect(more).to_be_hidden()
    expect(job.locator("#files-kept")).not_to_contain_text("The first")


def test_an_admin_allows_and_retires_images(page, site):
    page.goto(f"{site.url}{JOBS_PATH}images")
    expect(page.locator("#empty")).to_be_visible()
    offer(site, "vision", "colours and shapes", opencv="4.11.0", pandas="2.2.3")
    offer(site, "speech", "for the seminar", torchcodec="0.8.1")
    page.reload()
    vision, speech = (page.get_by_role("row").filter(has_text=name) for name in ("vision", "speech"))
    mark(page)
    expect(vision).to_contain_text("waits for an administrator")
    expect(vision).to_contain_text("opencv 4.11.0, pandas 2.2.3")
    expect(vision).to_contain_text("812 MB")
    vision.get_by_role("button", name="Allow").click()
    expect(vision.locator(".badge")).to_have_text("allowed")
    expect(vision.get_by_role("button", name="Allow")).to_have_count(0)
    vision.get_by_role("button", name="Retire").click()
    expect(vision.locator(".badge")).to_have_text("retired")
    expect(speech.get_by_role("button", name="Allow")).to_be_visible()
    assert is_marked(page)


@pytest.mark.full("tests/service/api/people/test_access has it without a page")
def test_others_see_what_is_allowed_and_change_nothing(page, chromium, site):
    offer(site, "allowed", "for all", tinycolours="1.0")
    offer(site, "pending", "not yet", tinycolours="1.1")
    page.goto(f"{site.url}{JOBS_PATH}images")
    page.get_by_role("row").filter(has_text="for all").get_by_role("button", name="Allow").click()
    expect(page.get_by_role("row").filter(has_text="for all").locator(".badge")).to_have_text("allowed")
    context = chromium.new_context()
    other = context.new_page()
    log_in(other, site.url, "hedy", site.cluster.add_user("hedy"))
    other.goto(f"{site.url}{JOBS_PATH}images")
    expect(other.get_by_role("row").filter(has_text="for all")).to_be_visible()
    expect(other.get_by_text("not yet")).to_have_count(0)
    expect(other.locator("#images").get_by_role("button")).to_have_count(0)
    context.close()


def test_what_a_user_says_of_an_image_stays_text(page, site):
    offer(site, "odd", EVIL, tinyghost="1.0")
    page.goto(f"{site.url}{JOBS_PATH}images")
    odd = page.get_by_role("row").filter(has_text="odd")
    expect(odd).to_contain_text(EVIL)
    expect(odd.get_by_role("button", name="Allow")).to_be_visible()
    assert not is_broken(page)


def test_a_stranger_is_sent_to_the_login(chromium, site):
    context = chromium.new_context()
    page = context.new_page()
    for path in (
        JOBS_PATH,
        f"{JOBS_PATH}cluster",
        f"{JOBS_PATH}images",
        f"{JOBS_PATH}jobs/1",
        f"/user/{USER}/lab",
    ):
        page.goto(site.url + path)
        expect(page.locator("#username_input")).to_be_visible()
    context.close()
