"""The catalogue, on SQLite and PostgreSQL: names, states, and the nodes that have an image."""

import pytest

from minicluster.wire import ImageState, Pin, Recipe, TaskReport
from minicluster_hub.jobs.records import ImageRecord
from minicluster_hub.store import ImageNameTaken

DIGESTS = [f"sha256:{letter * 64}" for letter in "abc"]
RECIPE = Recipe(
    packages=(Pin(name="tiny", version="1.0"),),
    python="3.12",
    machine="x86_64",
    layer_sha256="1" * 64,
    layer_bytes=10,
    diff_sha256="2" * 64,
)


def image(digest, name="vision", owner="ada", state=ImageState.ALLOWED, recipe=RECIPE):
    reference = f"127.0.0.1:5100/{owner or 'minicluster'}/{name}@{digest}"
    return ImageRecord(digest, name, reference, owner, "odd \x00 text", "", 0, None, recipe, state, 1.0, 1.0)


def test_what_goes_in_comes_out_but_for_what_no_database_takes(store):
    store.images.publish(image(DIGESTS[0]))
    store.images.describe(DIGESTS[0], 7, "cuda")
    found = store.images.find(DIGESTS[0])
    assert (found.size_bytes, found.device, found.recipe, found.state) == (7, "cuda", RECIPE, "allowed")
    assert "\x00" not in found.description
    assert store.images.find(DIGESTS[1]) is None


def test_the_clusters_own_come_first_and_go_with_the_settings(store):
    store.images.publish(image(DIGESTS[2], "a-published-one"))
    own = [image(DIGESTS[number], "notebook", "", recipe=None) for number in (0, 1)]
    store.images.enter_own(own)
    names = [one.name for one in store.images.all()]
    assert names == ["notebook", f"notebook-{'b' * 8}", "a-published-one"]
    store.images.enter_own(own[1:])
    states = {one.digest: one.state for one in store.images.all()}
    assert states == {DIGESTS[0]: "retired", DIGESTS[1]: "allowed", DIGESTS[2]: "allowed"}
    assert store.images.find(DIGESTS[1]).name == "notebook"
    assert store.open_state().refused_images == {own[0].reference}


def test_a_name_belongs_to_whoever_has_it(store):
    store.images.publish(image(DIGESTS[0]))
    with pytest.raises(ImageNameTaken, match="one of ada"):
        store.images.publish(image(DIGESTS[1], owner="bob"))
    assert store.images.find(DIGESTS[1]) is None
    store.images.change(DIGESTS[0], ImageState.RETIRED, 2.0)
    store.images.publish(image(DIGESTS[1], owner="bob"))
    store.images.change(DIGESTS[0], ImageState.ALLOWED, 3.0)
    assert store.images.find(DIGESTS[0]).name == f"vision-{'a' * 8}"
    store.images.change(DIGESTS[2], ImageState.ALLOWED, 3.0)  # there is none: nothing happens


def test_a_node_has_what_an_agent_on_it_runs_in(store, given):
    mine = image(DIGESTS[0])
    store.images.publish(mine)
    _, _, tasks = given.admitted(image=mine.reference)
    _, _, others = given.admitted("key-0002", places=[("node-4", (0,))], image=f"unknown@{DIGESTS[1]}")
    for task in (*tasks[:2], *others):
        assert store.report(task, TaskReport(ready=True, store_port=1), 2.0)
    assert store.images.nodes() == {DIGESTS[0]: tuple(sorted(task.node for task in tasks[:2]))}


def test_agents_of_one_node_may_say_it_at_once(store, given):
    mine = image(DIGESTS[0])
    store.images.publish(mine)
    gangs = [
        given.admitted(f"key-{number:04}", places=[("node-1", (number,))], image=mine.reference)
        for number in range(4)
    ]
    tasks = [task for _, _, (task,) in gangs]
    report = TaskReport(ready=True, store_port=1)
    given.in_threads(4, lambda number: store.report(tasks[number], report, 2.0))
    assert store.images.nodes() == {DIGESTS[0]: ("node-1",)}
    assert {task.state for task in store.open_state().tasks} == {"ready"}
