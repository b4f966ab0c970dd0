"""The pages Runs and a Run: live, compared, by keyboard, on a narrow screen; users' text is escaped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect
from sqlalchemy import insert

from minicluster.wire import JobSpec
from minicluster_hub.runs.series import Batch, SeriesFile
from minicluster_hub.store import Store
from minicluster_hub.store.tables.main import JOBS
from minicluster_hub.store.tables.runs import RUN_METRICS, RUN_TAGS, RUNS

from .conftest import USER, Site
from .lab import JOB_MS, JOBS_PATH, open_notebook, run_cell, wait_ran

EVIL = """<img src=x onerror="window.broken = 1">"""
TRAINING = """%%distribute --nodes 2 --name digits --tag first --seed 1
import minicluster as mc
rate = 0.1
for step in range(40):
    loss = 2 / (2 + rate * step)
    mc.log({"train": {"loss": loss, "accuracy": 1 - loss / 2}, "epoch": step // 10}, step=step)
    print(f"\\x1b[32mstep\\x1b[0m {step}, loss {loss:.3f}")
"""
OTHER = (
    TRAINING.replace("rate = 0.1", "rate = 0.5").replace("--seed 1", "--seed 2").replace("first", "second")
)
OUTPUT = f"""%%distribute --nodes 1 --name with-output
import base64
import minicluster as mc
mc.log({{{EVIL!r}: 1.0}}, step=1)
(mc.output() / "dot.png").write_bytes(base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="))
(mc.output() / "notes.txt").write_text({EVIL!r})
print("the end")
"""
READ_PARQUET = """async ([url, bytes]) => {
  const { parquetReadObjects } = await import(`${url}static/npm/hyparquet/src/index.js`);
  const rows = await parquetReadObjects({ file: new Uint8Array(bytes).buffer });
  return rows.filter((row) => row.name === "train/loss" && row.rank === 0);
}"""
PLANTED, FIRST_PLANTED = 60, 5000
POINTS = 20_000


def plant(site: Site) -> None:
    """Write finished runs into the service's store, and a long curve of one: real ones would take an hour."""
    ids = range(FIRST_PLANTED, FIRST_PLANTED + PLANTED)
    job = {"owner": USER, "reason": "", "state": "succeeded", "attempts": 1}
    jobs = [
        {**job, "id": one, "idempotency_key": f"planted-{one}", "state_since": one}
        | {"created_at": one, "started_at": one, "ended_at": one + 60}
        | {"spec": JobSpec(payload_sha256="a" * 64, name=f"planted {one}").model_dump_json()}
        for one in ids
    ]
    runs = [
        {"job_id": one, "owner": USER, "name": f"planted {one}", "note": "", "favourite": False}
        | {"origin": "{}"}
        for one in ids
    ]
    tags = [{"job_id": one, "tag": f"planted-{one % 2}", "place": 0} for one in ids]
    metrics = [
        {"job_id": one, "name": "planted/loss", "value": (one * 7 % PLANTED) / 10, "step": 1.0}
        | {"low": 0.0, "high": 9.0}
        for one in ids
    ]
    store = Store.open(f"sqlite:///{site.cluster.data / 'service' / 'minicluster.sqlite'}")
    with store._database.write() as connection:
        for table, rows in ((JOBS, jobs), (RUNS, runs), (RUN_TAGS, tags), (RUN_METRICS, metrics)):
            connection.execute(insert(table), rows)
    store.close()
    points = [(float(step), 5000.0 + step, 1 + math.sin(step)) for step in range(POINTS)]
    points[500] = (500.0, 5500.0, 80.0)
    series = SeriesFile(site.cluster.data / "service" / "runs" / f"{FIRST_PLANTED}.sqlite")
    series.append(Batch(1, {("planted/loss", 0): points}))


@pytest.fixture(scope="module")
def planted(site: Site) -> Site:
    plant(site)
    return site


@pytest.fixture(scope="module")
def trained(session: BrowserContext, site: Site) -> Iterator[dict[str, str]]:
    """The ids of two runs of a notebook, and what a page of runs that was open meanwhile had of each."""
    site.put_notebook("runs.ipynb", TRAINING, OTHER)
    runs, notebook = session.new_page(), session.new_page()
    open_runs(runs, site)
    # Other tests' runs log other metrics: the one that is looked at has the last column.
    runs.evaluate("localStorage.setItem('minicluster-run-columns', '[\"train/loss\"]')")
    runs.reload()
    runs.evaluate("window.mark = 1")
    open_notebook(notebook, site.url, USER, "runs.ipynb")
    found: dict[str, str] = {}
    for index, tag in enumerate(("first", "second")):
        row = runs.locator("#runs tbody tr").filter(has_text="digits").filter(has_text=tag)
        wait_ran(run_cell(notebook, index))
        expect(row).to_contain_text("succeeded", timeout=JOB_MS)
        expect(row.locator("td").last).to_have_text(re.compile(r"^\d"), timeout=JOB_MS)
        found[tag] = row.get_attribute("data-run") or ""
    runs.evaluate("localStorage.removeItem('minicluster-run-columns')")
    assert runs.evaluate("window.mark === 1"), "the page was loaded again"
    runs.close()
    notebook.close()
    yield found


def open_runs(page: Page, site: Site, more: str = "") -> None:
    page.goto(f"{site.url}{JOBS_PATH}runs{more}")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def open_run(page: Page, site: Site, run: str) -> None:
    page.goto(f"{site.url}{JOBS_PATH}runs/{run}")
    expect(page.locator("#facts-rows tr").first).to_be_visible()


def rows(page: Page) -> Locator:
    return page.locator("#runs tbody tr")


def chart(page: Page, title: str) -> Locator:
    return page.locator("figure.mc-chart").filter(has=page.get_by_text(title, exact=True))


def drag(page: Page, chart: Locator, low: float, high: float) -> None:
    """Drag over a part of a chart, given in shares of its width."""
    chart.scroll_into_view_if_needed()
    box = chart.locator(".u-over").bounding_box()
    assert box
    for share, act in ((low, page.mouse.down), ((low + high) / 2, None), (high, page.mouse.up)):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        if act is not None:
            act()


def is_narrow(page: Page) -> bool:
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(300)
    fits = page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    return fits


def test_runs_are_searched_sorted_and_paged(page: Page, planted: Site) -> None:
    open_runs(page, planted)
    with page.expect_response(re.compile("search=planted")):
        page.locator("#search").fill("planted")
    expect(page.locator("#range")).to_have_text(f"1 to 50 of {PLANTED}")
    page.locator("#next").click()
    expect(page.locator("#range")).to_have_text(f"51 to {PLANTED} of {PLANTED}")
    page.locator("#tag").select_option("planted-1")
    expect(page.locator("#range")).to_have_text(f"1 to {PLANTED // 2} of {PLANTED // 2}")
    heading = page.get_by_role("columnheader", name="planted/loss")
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(rows(page).first).to_contain_text("5.9")
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(rows(page).first).to_contain_text("0.1")
    page.locator("#state").select_option("failed")
    expect(page.locator("#empty")).to_contain_text("No run is like this.")
    assert is_narrow(page)


def test_columns_and_favourites_are_remembered(page: Page, planted: Site) -> None:
    open_runs(page, planted)
    page.locator("#search").fill(f"planted {FIRST_PLANTED + 1}")
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="planted/loss").uncheck()
    expect(page.get_by_role("columnheader", name="planted/loss")).to_have_count(0)
    star = page.get_by_role("button", name=f"Favourite: run {FIRST_PLANTED + 1}")
    star.click()
    expect(star).to_have_attribute("aria-pressed", "true")
    page.reload()
    page.get_by_role("checkbox", name="Favourites").check()
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text(f"planted {FIRST_PLANTED + 1}")
    expect(page.get_by_role("columnheader", name="planted/loss")).to_have_count(0)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="planted/loss").check()
    expect(page.get_by_role("columnheader", name="planted/loss")).to_be_visible()


def test_a_range_of_a_long_curve_comes_with_all_its_points(page: Page, planted: Site) -> None:
    open_run(page, planted, str(FIRST_PLANTED))
    curve = chart(page, "planted/loss")
    curve.get_by_text("As a table").click()
    cells = curve.locator("tbody td")
    expect(cells).to_have_text([str(POINTS), re.compile(".*"), re.compile(".*"), "80"])
    drag(page, curve, 0.01, 0.05)
    low, high = (float(page.locator(f"#curve-{end}").input_value()) for end in ("from", "to"))
    assert 0 < low < 500 < high < 1500
    expect(cells.first).to_have_text(str(math.floor(high) - math.ceil(low) + 1))
    expect(cells.last).to_have_text("80")
    page.locator("#curve-from").fill("600")
    page.locator("#curve-from").press("Enter")
    expect(cells.last).to_have_text("2")
    page.locator("#curve-all").click()
    expect(cells.first).to_have_text(str(POINTS))


def test_ticked_runs_are_compared(page: Page, site: Site, trained: dict[str, str], shots) -> None:
    open_runs(page, site)
    page.locator("#search").fill("digits")
    boxes = [page.get_by_role("checkbox", name=f"Compare run {run},") for run in trained.values()]
    for box in boxes:
        box.focus()
        page.keyboard.press("Space")
        expect(box).to_be_focused()
    page.get_by_role("button", name="Compare", exact=True).click()
    loss = chart(page, "train/loss")
    expect(loss.locator(".mc-legend li")).to_have_count(3)
    expect(loss.locator(".mc-plot")).to_have_attribute(
        "aria-label", re.compile(r"train/loss by step\..*last")
    )
    differs = page.locator("#difference-table tbody tr")
    expect(page.get_by_role("row", name="Seed 1 2", exact=True)).to_be_visible()
    expect(differs.filter(has_text="Options")).to_contain_text("--tag second")
    expect(differs.filter(has_text="Ranks")).to_have_count(0)
    expect(page.locator(".mc-removed")).to_have_text("-rate = 0.1")
    expect(page.locator(".mc-added")).to_have_text("+rate = 0.5")
    page.get_by_label("Show what is equal, too").check()
    expect(differs.filter(has_text="Ranks")).to_contain_text("equal")
    page.get_by_label("Show what is equal, too").uncheck()
    page.screenshot(path=shots / "runs.png", full_page=True)
    assert is_narrow(page)
    page.locator("#dark-theme-toggle").click()
    page.screenshot(path=shots / "runs-dark.png", full_page=True)
    page.locator("#dark-theme-toggle").click()
    page.reload()
    page.get_by_role("button", name="Compare", exact=True).click()
    loss.scroll_into_view_if_needed()
    expect(loss.locator(".mc-legend li")).to_have_count(3)
    page.get_by_role("button", name="Untick all").click()
    expect(page.locator("#comparison")).to_be_hidden()


def test_curves_over_another_axis_smoothed_and_read_by_keyboard(
    page: Page, site: Site, trained: dict[str, str]
) -> None:
    open_run(page, site, trained["first"])
    loss = chart(page, "train/loss")
    expect(loss.locator("canvas")).to_be_visible()
    plot = loss.locator(".mc-plot")
    plot.focus()
    page.keyboard.press("End")
    expect(loss.locator("[aria-live]")).to_have_text(re.compile(r"^step 39: value 0\.33898"))
    page.keyboard.press("ArrowLeft")
    expect(loss.locator("[aria-live]")).to_have_text(re.compile(r"^step 38: value 0\.34483"))
    page.locator("#curve-axis").select_option("epoch")
    expect(plot).to_have_attribute("aria-label", re.compile("by epoch"))
    plot.focus()
    page.keyboard.press("Home")
    # The mean of the ten steps of epoch 0.
    mean = sum(2 / (2 + 0.1 * step) for step in range(10)) / 10
    expect(loss.locator("[aria-live]")).to_have_text(re.compile(rf"^epoch 0: value {mean:.4f}"))
    page.locator("#curve-log").check()
    page.locator("#curve-smoothing").fill("0.9")
    expect(loss.locator("canvas")).to_be_visible()
    page.locator("#curve-rank").select_option("0,1")
    expect(loss.locator(".mc-legend li")).to_have_count(3)
    page.reload()
    expect(page.locator("#curve-log")).to_be_checked()
    page.locator("#curve-log").uncheck()
    page.locator("#curve-smoothing").fill("0")
    page.locator("#curve-axis").select_option("step")


def test_a_runs_page_has_all_that_is_remembered_of_it(
    page: Page, site: Site, trained: dict[str, str], shots
) -> None:
    page.goto(f"{site.url}{JOBS_PATH}jobs/{trained['first']}")
    expect(page).to_have_url(re.compile(rf"/runs/{trained['first']}$"))
    facts = page.locator("#facts-rows")
    expect(facts).to_contain_text("--nodes 2 --name digits --tag first --seed 1")
    expect(page.locator("#source")).to_contain_text("rate = 0.1")
    expect(page.locator("#log span").first).to_have_text("step")
    page.locator("#find").fill("STEP 3")
    expect(page.locator("#found")).to_have_text("11 found")
    page.locator("#find").press("Enter")
    expect(page.locator("#found")).to_have_text("1 of 11 found")
    page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(path=shots / "run.png")
    page.get_by_role("button", name="Edit tags and note").click()
    page.get_by_label("Tags, with commas between them").fill(f"first, {EVIL}")
    page.locator("#edit-note").fill(f"good\n{EVIL}")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#run-note")).to_contain_text(EVIL)
    expect(page.locator("#tags")).to_contain_text(EVIL)
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#again-line code")).to_have_text(f"%distribute rerun {trained['first']}")
    assert is_narrow(page)
    assert page.evaluate("window.broken === undefined")


def test_all_points_are_exported(page: Page, site: Site, trained: dict[str, str]) -> None:
    open_run(page, site, trained["first"])
    saved = {}
    for name in ("CSV", "JSON", "Parquet"):
        with page.expect_download() as download:
            page.get_by_text(name, exact=True).click()
        assert download.value.suggested_filename == f"run-{trained['first']}.{name.lower()}"
        saved[name] = download.value.path().read_bytes()
    assert saved["CSV"].startswith(b"name,rank,step,at,value\n")
    wanted = [one for one in json.loads(saved["JSON"]) if one["name"] == "train/loss" and one["rank"] == 0]
    assert len(wanted) == 40
    read = page.evaluate(READ_PARQUET, [f"{site.url}{JOBS_PATH}", list(saved["Parquet"])])
    assert read == wanted


@pytest.mark.full("tests/service/api/storage/test_artifacts has the files without a page")
def test_files_are_shown_and_names_of_metrics_stay_text(page: Page, session, site: Site, shots) -> None:
    site.put_notebook("with-output.ipynb", OUTPUT)
    open_notebook(page, site.url, USER, "with-output.ipynb")
    wait_ran(run_cell(page, 0))
    open_runs(page, site)
    row = rows(page).filter(has_text="with-output")
    run = row.get_attribute("data-run") or ""
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(chart(page, EVIL)).to_be_visible()
    open_run(page, site, run)
    expect(chart(page, EVIL)).to_be_visible()
    page.get_by_role("button", name="Show notes.txt").click()
    expect(page.locator("#file-rows pre")).to_have_text(EVIL)
    page.get_by_role("button", name="Show dot.png").click()
    picture = page.locator("#file-rows img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") == 1
    assert page.evaluate("window.broken === undefined")
