"""Hostile text on our pages: none of it may run as a script."""

import pytest
from jinja2 import DictLoader, Environment

from minicluster_hub.pages import handlers

from ...service.api.test_pages import visit

PAGES = ("home", "jobs", "runs", "cluster", "images", "queue")
SCRIPT = "<script>window.hacked = 1</script>"


def scripts_allowed(page):
    return page.headers["Content-Security-Policy"].partition("script-src ")[2].partition(";")[0]


@pytest.mark.parametrize("name", [SCRIPT, '"><script src="//evil"></script>'])
async def test_what_is_slipped_into_a_page_is_not_among_the_scripts_that_may_run(api, name):
    plain, hostile = [await api.submit(nodes=5, name=job_name) for job_name in ("a name", name)]
    for path in (*PAGES, f"runs/{plain.id}", f"runs/{hostile.id}", "runs/99999"):
        page = await visit(api, path)
        assert scripts_allowed(page) == "'self'"
        assert name not in page.text


async def test_a_template_that_forgets_to_escape_does_not_bless_what_gets_into_it(api, monkeypatch):
    forgetful = Environment(loader=DictLoader({"minicluster_jobs.html": SCRIPT}))
    monkeypatch.setattr(handlers, "_environment", lambda: forgetful)
    page = await visit(api, "jobs")
    assert SCRIPT in page.text
    assert scripts_allowed(page) == "'self'"
