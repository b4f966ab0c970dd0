"""Data sets over the API: pushed once, visible to the right users, removed with unused pieces."""

import asyncio
import hashlib
import time
from dataclasses import replace

import pytest

from minicluster.datasets.folder import FolderUnusable
from minicluster.wire import PIECE_BYTES, BlobInfo, DataManifest, DataSetList, StorageReport
from minicluster_hub.datasets import manager
from minicluster_hub.storage.quotas import OverQuota

from ....patience import eventually
from ..data import count, make_folder, push

MANY = {f"train/{number % 10}/{number:05}.png": 12_000 + number % 7 for number in range(2_000)}
PUT = "api/data/pieces/{sha256}"


async def listed(api, token="ada-token", **params):
    answer = await api.ask("GET", "api/data", token, params=params)
    assert answer.status_code == 200, answer.text
    return DataSetList.model_validate_json(answer.content).sets


def files(api):
    return {path.name for path in api.context.data_sets.files._root.glob("??/*")}


async def test_many_small_files_are_few_pieces_and_sent_once(api, tmp_path):
    folder = make_folder(tmp_path / "many", MANY)
    made, sent = await push(api, folder, "many")
    assert (made.files, made.size_bytes) == (len(MANY), sum(MANY.values()))
    assert sent.sent_bytes == made.size_bytes
    assert sent.sent_pieces <= 4
    requests = count(api, "PUT", PUT)
    assert requests == sent.sent_pieces + 1  # the manifest, too
    again, sent_again = await push(api, folder, "the-same")
    assert (again.manifest_sha256, sent_again.sent_bytes) == (made.manifest_sha256, 0)
    assert count(api, "PUT", PUT) == requests


async def test_a_changed_file_is_sent_with_its_own_pack_alone(api, tmp_path):
    folder = make_folder(tmp_path / "many", MANY | {"model.bin": 3 * PIECE_BYTES})
    _, first = await push(api, folder, "many")
    (folder / "train/3/00003.png").write_bytes(b"another one")
    (folder / "train/9/new.png").write_bytes(b"a new one")
    _, second = await push(api, folder, "many")
    assert second.sent_pieces <= 2 < first.sent_pieces
    assert [one.files for one in await listed(api)] == [len(MANY) + 2]


async def test_a_push_that_was_cut_goes_on_where_it_stopped(api, tmp_path):
    folder = make_folder(tmp_path / "large", {"a.bin": 5 * PIECE_BYTES, "b.bin": 5 * PIECE_BYTES})

    def cut(now):
        if now.sent_pieces == 4:
            raise ConnectionAbortedError("the laptop was closed")

    with pytest.raises(ConnectionAbortedError):
        await push(api, folder, "large", tell=cut)
    came = count(api, "PUT", PUT)
    assert 4 <= came < 10
    assert await listed(api) == ()
    made, sent = await push(api, folder, "large")
    assert sent.sent_pieces == 10 - came
    assert count(api, "PUT", PUT) == 10 + 1
    assert made.size_bytes == 10 * PIECE_BYTES


async def test_what_came_damaged_or_is_missing_makes_no_data_set(api):
    sha256 = hashlib.sha256(b"sent").hexdigest()
    damaged = await api.ask("PUT", f"api/data/pieces/{sha256}", content=b"came")
    assert (damaged.status_code, damaged.json()["error"]["code"]) == (422, "blob_damaged")
    assert files(api) == set()
    manifest = b'{"files":[["a",4]],"pieces":[{"sha256":"%s","size_bytes":4}]}' % sha256.encode()
    name = hashlib.sha256(manifest).hexdigest()
    await api.ask("PUT", f"api/data/pieces/{name}", content=manifest)
    answer = await api.ask("PUT", "api/data/sets/x", json={"manifest_sha256": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pieces_missing")
    await api.ask("PUT", f"api/data/pieces/{sha256}", content=b"sent")
    assert (await api.ask("PUT", "api/data/sets/x", json={"manifest_sha256": name})).status_code == 200


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "", "a/" * 600 + "x"])
async def test_a_manifest_that_leads_out_of_its_folder_is_refused(api, path):
    sha256 = hashlib.sha256(b"sent").hexdigest()
    manifest = f'{{"files":[["{path}",4]],"pieces":[{{"sha256":"{sha256}","size_bytes":4}}]}}'.encode()
    name = hashlib.sha256(manifest).hexdigest()
    for body in (manifest, b"sent"):
        await api.ask("PUT", f"api/data/pieces/{hashlib.sha256(body).hexdigest()}", content=body)
    answer = await api.ask("PUT", "api/data/sets/x", json={"manifest_sha256": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "manifest_wrong")


async def test_a_hash_alone_opens_nothing(api, tmp_path):
    """A user who knows the hash of another's piece must still send its bytes."""
    made, _ = await push(api, make_folder(tmp_path / "own", {"a": 100}), "own")
    answer = await api.ask(
        "PUT", "api/data/sets/mine", "bob-token", json={"manifest_sha256": made.manifest_sha256}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pieces_missing")
    _, sent = await push(api, tmp_path / "own", "mine", owner="bob")
    assert sent.sent_bytes == 100


async def test_others_see_only_what_is_shared_and_remove_nothing(api, tmp_path):
    folder = make_folder(tmp_path / "own", {"a": 100})
    await push(api, folder, "own")
    await push(api, folder, "pets", shared=True)
    assert [(one.owner, one.name) for one in await listed(api, "bob-token")] == [("ada", "pets")]
    again, _ = await push(api, folder, "pets")
    assert again.shared  # as it was
    assert (await api.ask("DELETE", "api/data/sets/pets", "bob-token")).status_code == 404
    denied = await api.ask("DELETE", "api/data/sets/pets", "bob-token", params={"owner": "ada"})
    assert denied.status_code == 403
    assert len(await listed(api, "root-token", owner="all")) == 2
    gone = await api.ask("DELETE", "api/data/sets/pets", "root-token", params={"owner": "ada"})
    assert gone.status_code == 204
    assert (await api.ask("GET", "api/data", "submitter-token")).status_code == 403
    assert (await api.ask("DELETE", "api/data/sets/own", "reader-token")).status_code == 403


async def test_a_job_names_data_sets_that_its_owner_may_read(api, tmp_path):
    folder = make_folder(tmp_path / "own", {"a": 100})
    made, _ = await push(api, folder, "own")
    await push(api, folder, "pets", shared=True)
    job = await api.submit(data=[{"name": "own"}])
    (use,) = api.context.store.job(job.id).spec.data
    assert (use.owner, use.manifest_sha256, use.size_bytes) == ("ada", made.manifest_sha256, 100)
    job = await api.submit("bob", data=[{"name": "ada/pets", "owner": "x", "files": 7}])
    assert api.context.store.job(job.id).spec.data[0].owner == "ada"
    for owner, name in (("bob", "own"), ("bob", "ada/own"), ("bob", "pets"), ("ada", "petz")):
        with pytest.raises(AssertionError, match="unknown_data_set") as refusal:
            await api.submit(owner, data=[{"name": name}])
        assert ("Data sets: own, pets." if owner == "ada" else "Data sets: ada/pets.") in str(refusal.value)


async def test_a_job_reads_the_version_that_it_names(api, tmp_path):
    folder = make_folder(tmp_path / "own", {"a": 100})
    first, _ = await push(api, folder, "own")
    run = await api.submit(data=[{"name": "own"}])
    await api.ask("POST", f"api/jobs/{run.id}/stop")
    (folder / "a").write_bytes(b"another version")
    second, _ = await push(api, folder, "own")
    sweep(api, versions_s=60.0)
    (now,) = await listed(api)
    assert now.manifest_sha256 == second.manifest_sha256
    assert [one.manifest_sha256 for one in now.earlier] == [first.manifest_sha256]
    report = StorageReport.model_validate_json((await api.ask("GET", "api/storage")).content)
    (stored,) = (thing for thing in report.things if thing.job_id is None)
    assert (stored.earlier_versions, stored.earlier_bytes) == (1, 2 * 4096)  # its manifest and its file
    for version, expected in (
        ("", second),
        (second.manifest_sha256[:12], second),
        (first.manifest_sha256, first),
    ):
        again = await api.submit(data=[{"name": "own", "manifest_sha256": version}])
        (use,) = api.context.store.job(again.id).spec.data
        assert (use.manifest_sha256, use.size_bytes) == (expected.manifest_sha256, expected.size_bytes)
    with pytest.raises(AssertionError, match="unknown_data_version") as refusal:
        await api.submit(data=[{"name": "own", "manifest_sha256": "0" * 12}])
    assert f"{second.manifest_sha256[:12]}, {first.manifest_sha256[:12]}" in str(refusal.value)
    with pytest.raises(AssertionError, match="data_twice"):
        await api.submit(data=[{"name": "own", "manifest_sha256": first.manifest_sha256}, {"name": "own"}])


async def test_earlier_versions_make_room_when_the_quota_is_full(api, tmp_path):
    api.context.storage.before_refusal(api.context.data_sets.make_room)
    folder = make_folder(tmp_path / "own", {"a": 9_000})
    await push(api, folder, "own")
    run = await api.submit(data=[{"name": "own"}])
    await api.ask("POST", f"api/jobs/{run.id}/stop")
    await api.until(run.id, "stopped")
    make_folder(folder, {"a": 9_000}, seed=1)
    await push(api, folder, "own")
    assert len((await listed(api))[0].earlier) == 1
    limit(api, 40_000)  # two versions have 34 KB, with 4 KB for each manifest and the file's entry
    other, _ = await push(api, make_folder(tmp_path / "other", {"b": 9_000}), "other")
    assert [(one.name, one.earlier) for one in await listed(api)] == [("other", ()), ("own", ())]
    assert other.manifest_sha256 in files(api)
    assert len(files(api)) == 4


def sweep(api, grace_s=-1.0, clock=time.time, versions_s=-1.0):
    return replace(api.context.data_sets, grace_s=grace_s, clock=clock, versions_s=versions_s).sweep()


async def test_pieces_go_when_nobody_needs_them_and_not_before(api, tmp_path):
    folder = make_folder(tmp_path / "own", {"a": 100})
    first, _ = await push(api, folder, "own")
    job = await api.submit(nodes=5, data=[{"name": "own"}])  # it waits: two nodes are down
    (folder / "a").write_bytes(b"another version")
    await push(api, folder, "own")
    await push(api, make_folder(tmp_path / "own2", {"a": 100}), "of-bob", owner="bob")
    before = files(api)
    assert sweep(api) == 0  # the job names the first version
    await api.ask("POST", f"api/jobs/{job.id}/stop")
    await api.until(job.id, "stopped")
    sweep(api)  # bob's is the same
    assert files(api) == before
    await api.ask("DELETE", "api/data/sets/of-bob", "bob-token")
    sweep(api)
    assert first.manifest_sha256 not in files(api)
    assert len(files(api)) == 2  # the newest version's piece and manifest
    await api.ask("DELETE", "api/data/sets/own")
    sweep(api)
    assert files(api) == set()


async def test_a_push_under_way_is_not_hurt_by_the_sweep(api, tmp_path):
    """Pieces for which a push asked recently stay, whatever their age."""
    folder = make_folder(tmp_path / "own", {"a": 100})
    await push(api, folder, "own")
    await api.ask("DELETE", "api/data/sets/own")
    before = time.time()
    _, sent = await push(api, folder, "again")
    (again,) = await listed(api)
    held = BlobInfo(sha256=again.manifest_sha256, size_bytes=0)
    data = api.context.data_sets.files.path(again.manifest_sha256).read_bytes()
    pieces = (held, *DataManifest.model_validate_json(data).pieces)
    await api.context.data_sets.missing("ada", pieces)  # another push asks for it
    await api.ask("DELETE", "api/data/sets/again")
    assert sweep(api, grace_s=0.0, clock=lambda: before) == 0
    assert sent.sent_bytes == 0
    assert sweep(api) == 2


async def test_a_user_brings_no_more_than_the_cluster_allows(api, tmp_path):
    await push(api, make_folder(tmp_path / "one", {"a": 2_000}), "one")
    limit(api, 14_000)  # each file counts 4 KB at least: the piece, the manifest, and now one more
    new = BlobInfo(sha256="ab" * 32, size_bytes=8_000)
    sets = api.context.data_sets
    with pytest.raises(OverQuota, match="8 KB more of data sets would be over this cluster's limit of 14 KB"):
        await sets.missing("ada", (new,))
    assert await sets.missing("bob", (new,)) == (new,)


def limit(api, limit_bytes):
    """Set the storage limit of a user."""
    api.context.storage._data_limit_bytes = limit_bytes


async def send(api, content, token="ada-token", sha256=None):
    sha256 = sha256 or hashlib.sha256(content if isinstance(content, bytes) else b"").hexdigest()
    answer = await api.ask("PUT", f"api/data/pieces/{sha256}", token, content=content)
    return answer.status_code, answer.json().get("error", {}).get("code")


async def chunked(body):
    yield body


async def slowly(first, rest, go_on):
    yield first
    await go_on.wait()
    yield rest


async def test_who_sends_without_asking_brings_no_more_either(api):
    limit(api, 30_000)
    first, second = b"a" * 20_000, b"b" * 20_000
    assert await send(api, first) == (200, None)
    assert await send(api, second) == (413, "data_limit")
    assert await send(api, chunked(second)) == (413, "data_limit")
    assert files(api) == {hashlib.sha256(first).hexdigest()}
    assert await send(api, first) == (200, None)  # the owner's already
    assert await send(api, second, "bob-token") == (200, None)
    assert api.context.store.storage.used("ada")["data"].size_bytes == 20_000
    assert not api.context.storage.coming_bytes("ada")


async def test_pieces_that_come_at_a_time_count_together(api):
    limit(api, 30_000)
    body, go_on = b"a" * 20_000, asyncio.Event()
    sha256, storage = hashlib.sha256(body).hexdigest(), api.context.storage
    client = api.client("ada-token", **{"Content-Length": "20000"})
    path = f"api/data/pieces/{sha256}"
    sending = asyncio.create_task(client.put(path, content=slowly(body[:1_000], body[1_000:], go_on)))
    await eventually(lambda: storage.coming_bytes("ada") == 20_000)
    assert await send(api, b"b" * 20_000) == (413, "data_limit")
    assert await send(api, b"b" * 10_000) == (200, None)
    go_on.set()
    assert (await sending).status_code == 200
    assert await send(api, b"c") == (413, "data_limit")
    assert not storage.coming_bytes("ada")


async def test_a_piece_that_was_cut_gives_its_room_back(api):
    limit(api, 30_000)
    body, storage = b"a" * 20_000, api.context.storage
    client = api.client("ada-token", **{"Content-Length": "20000"})
    path = f"api/data/pieces/{hashlib.sha256(body).hexdigest()}"
    sending = asyncio.create_task(client.put(path, content=slowly(body[:1_000], b"", asyncio.Event())))
    await eventually(lambda: storage.coming_bytes("ada") == 20_000)
    sending.cancel()
    await eventually(lambda: not storage.coming_bytes("ada"))
    assert await send(api, body, sha256="0" * 64) == (422, "blob_damaged")
    assert await send(api, b"b" * 30_000) == (200, None)


async def test_what_is_over_the_limit_makes_no_data_set(api, tmp_path):
    made, _ = await push(api, make_folder(tmp_path / "own", {"a": 20_000}), "own")
    limit(api, 10_000)
    answer = await api.ask("PUT", "api/data/sets/x", json={"manifest_sha256": made.manifest_sha256})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "data_limit")


@pytest.mark.parametrize(
    ("most", "text"),
    [
        ("MANIFEST_BYTES", b'{"files":[["a",0],["b",0]],"pieces":[]}'),
        ("PIECES_MOST", b"{" * 31),
        ("FILES_MOST", b"[" * 62),
    ],
)
async def test_a_manifest_that_is_too_large_is_not_read(api, monkeypatch, most, text):
    monkeypatch.setattr(manager, most, 30)
    await send(api, text)
    name = hashlib.sha256(text).hexdigest()
    answer = await api.ask("PUT", "api/data/sets/x", json={"manifest_sha256": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "manifest_too_large")


async def test_what_is_no_data_set_is_said_before_anything_is_sent(tmp_path, api):
    for folder, message in (("nowhere", "is no folder"), ("empty", "holds no files")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(FolderUnusable) as refused:
            await push(api, tmp_path / folder, "x")
        assert message in refused.value.message


async def test_where_nodes_hold_no_data_sets_a_job_that_reads_one_is_refused_at_once(api, tmp_path):
    await push(api, make_folder(tmp_path / "pets", {"a.png": 10}), "pets")
    api.engine.data_agents = None
    api.engine.data_sets_option = "OurEngine.folder"
    with pytest.raises(AssertionError, match="no_data_sets.*until an admin sets OurEngine.folder"):
        await api.submit(data=[{"name": "pets"}])
    assert api.context.store.count_open_jobs("ada") == 0
    asked = {"payload_sha256": "0" * 64, "data": [{"name": "pets"}]}
    forecast = await api.ask("POST", "api/starts", json={"specs": [asked]})
    assert "until an admin sets OurEngine.folder" in forecast.json()["starts"][0]["refused"]
