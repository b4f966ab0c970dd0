"""The notebook server's messages to its pages: one stream for all pages, the final picture for one."""

import threading
import time

import pytest

from minicluster.server_extension.watched_jobs import JobKey, WatchedJob

from ...patience import WITHIN_S
from .test_client import cell, ended

COUNT = (
    "import time\nfrom pathlib import Path\nfor number in range(20):\n"
    "    print('number', number, flush=True)\n    time.sleep(0.1)\n"
    "    while number == 9 and not Path({go!r}).exists():\n        time.sleep(0.01)"
)


class Page:
    """A page that accepts messages unless it is busy."""

    def __init__(self):
        self.told = []
        self.busy = False

    def tell(self, message):
        if not self.busy:
            self.told.append(message)
        return not self.busy

    def changes(self):
        return [message["change"] for message in self.told if "change" in message]

    def lines(self):
        lines = []
        for change in self.changes():
            part = change.get("ranks", {}).get("0")
            if part:
                lines = [*lines[: part["start"] - part["first"]], *part["entries"]]
        return lines


@pytest.fixture
def go(tmp_path):
    """The file that lets the job start its second half."""
    return tmp_path / "go"


@pytest.fixture
def watched(service, go):
    job = service.submit(cell(service, COUNT.format(go=str(go))))
    made = WatchedJob(JobKey("/here/", job.id, job.created_at))
    yield made
    go.touch()
    made.pages.clear()
    ended(service, job.id)


def follow(watched, service):
    threading.Thread(target=watched.follow, args=(lambda address: service,), daemon=True).start()


def publish_until(watched, reached):
    end = time.monotonic() + WITHIN_S
    while not reached():
        assert time.monotonic() < end
        watched.publish(time.time())
        time.sleep(0.05)


def state(page):
    return next((one["head"]["state"] for one in reversed(page.changes()) if "head" in one), "")


def test_each_page_has_all_of_it_whenever_it_came_and_however_slow_it_is(watched, service, go):
    first, late, slow = Page(), Page(), Page()
    watched.add(first)
    watched.add(slow)
    follow(watched, service)
    publish_until(watched, lambda: len(first.lines()) > 5)
    slow.busy = True
    watched.add(late)
    go.touch()
    publish_until(watched, lambda: state(first) == "succeeded")
    slow.busy = False
    watched.publish(time.time())
    whole = [f"number {number}" for number in range(20)]
    assert first.lines() == late.lines() == slow.lines() == whole
    assert late.changes()[0]["full"] and slow.changes()[-1]["full"]
    numbers = [change["number"] for change in first.changes()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_one_page_alone_writes_the_end_and_none_while_a_kernel_does(watched, service, go):
    go.touch()
    live, second, third = Page(), Page(), Page()
    watched.add(live, live=True)
    watched.add(second)
    watched.add(third)
    follow(watched, service)
    publish_until(watched, lambda: state(second) == "succeeded")
    pictures = lambda: [page for page in (live, second, third) if "picture" in page.told[-1]]  # noqa: E731
    watched.keep(second, time.time())
    assert pictures() == []
    watched.remove(live)
    watched.keep(second, time.time())
    watched.keep(third, time.time())
    assert pictures() == [second]
    assert "Succeeded" in second.told[-1]["picture"]["text/plain"]


@pytest.mark.parametrize(
    ("waited", "said"),
    [
        (True, ""),
        (False, "No kernel waited for its results: %distribute result"),
        (None, "If results are missing in the notebook: %distribute result"),
    ],
)
def test_the_end_says_how_to_bring_results_that_no_kernel_took(watched, service, go, waited, said):
    go.touch()
    page = Page()
    watched.add(page)
    follow(watched, service)
    publish_until(watched, lambda: state(page) == "succeeded")
    watched.keep(page, time.time(), waited)
    text = page.told[-1]["picture"]["text/plain"]
    assert said in text
    assert ("%distribute" in text) is bool(said)


@pytest.mark.parametrize(("number", "later"), [(0, 1.0), (10**6, 0.0)])
def test_a_job_of_another_cluster_is_not_taken_for_this_one(watched, service, number, later):
    """The other cluster has another job with this number, or none."""
    key = watched.key
    stranger = WatchedJob(JobKey(key.service, key.job + number, key.made + later))
    page = Page()
    stranger.add(page)
    stranger.follow(lambda address: service)
    stranger.publish(time.time())
    assert [message["refused"]["code"] for message in page.told] == ["unknown_job"]
