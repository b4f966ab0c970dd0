"""Hostile words on a page of ours: no script of theirs may run."""

import re

import pytest

from ..service.api.test_pages import visit

PAGES = ("", "nodes", "images", "queue")


@pytest.mark.parametrize("name", ["<script>window.hacked = 1</script>", '"><script src="//evil"></script>'])
async def test_what_is_slipped_into_a_page_is_not_among_the_scripts_that_may_run(api, name):
    plain, hostile = [await api.submit(nodes=5, name=told) for told in ("a name", name)]
    policies = set()
    for path in (*PAGES, f"jobs/{plain.id}", f"jobs/{hostile.id}", "jobs/99999"):
        page = await visit(api, path)
        policies.add(page.headers["Content-Security-Policy"])
        assert name not in page.text
    (policy,) = policies
    assert len(re.findall(r"'sha256-", policy)) == 2, "the hub's own script, with and without a user"
    assert "unsafe" not in policy
