"""The page Storage: each user's use, the largest items, and their removal."""

from __future__ import annotations

import hashlib

from playwright.sync_api import expect

from minicluster.wire import BlobInfo
from minicluster_hub.jobs.records import DataSetRecord
from minicluster_hub.store import Store

from .lab import JOBS_PATH

SIZE_BYTES = 3_000_000_000


def test_an_admin_sees_what_users_keep_and_removes_it(page, site, shots):
    sha256 = hashlib.sha256(b"a piece").hexdigest()
    store = Store.open(f"sqlite:///{site.cluster.data / 'service' / 'minicluster.sqlite'}")
    try:
        store.datasets.add_piece("mallory", BlobInfo(sha256=sha256, size_bytes=SIZE_BYTES), 1.0)
        record = DataSetRecord("mallory", "pets", sha256, 20, SIZE_BYTES, shared=False, created_at=2.0)
        store.datasets.keep(record, [sha256])
    finally:
        store.close()
    page.goto(f"{site.url}{JOBS_PATH}storage")
    owner = page.locator("#owners tbody tr").filter(has_text="mallory")
    expect(owner).to_contain_text("3 GB of")
    expect(owner).to_contain_text("data sets 3 GB")
    expect(page.locator("#disk")).to_contain_text("kept for its database")
    thing = page.locator("#things tr").filter(has_text="data set pets")
    expect(thing).to_contain_text("mallory")
    page.screenshot(path=shots / "storage.png", clip={"x": 0, "y": 0, "width": 1280, "height": 500})
    page.set_viewport_size({"width": 390, "height": 900})
    expect(thing.get_by_role("button")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.screenshot(path=shots / "storage-narrow.png")
    page.once("dialog", lambda dialog: dialog.dismiss())
    thing.get_by_role("button").click()
    expect(thing).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    thing.get_by_role("button").click()
    expect(thing).to_have_count(0)
    expect(page.get_by_role("alert")).to_be_hidden()
