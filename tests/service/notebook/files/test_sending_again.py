"""Large values are announced before they are sent, and not sent again while unchanged."""

from __future__ import annotations

import json

import pytest

from minicluster.client.connection import ServiceError

MODEL = "import torch\nmodel = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))"
SUM = "%%distribute --nodes 2 --pull total\ntotal = float(sum(p.double().sum() for p in model.parameters()))"


@pytest.fixture
def sent(notebook, monkeypatch):
    """The size of each upload from the notebook."""
    bodies = []
    service = notebook.run("get_ipython().magics_manager.registry['Distribute'].service()")
    ask = service.ask

    def counting(method, path, *args, **more):
        if method == "PUT":
            bodies.append(len(more["content"]))
        return ask(method, path, *args, **more)

    monkeypatch.setattr(service, "ask", counting)
    return bodies


def total(notebook):
    return float(sum(p.double().sum() for p in notebook.names["model"].parameters()))


def test_an_unchanged_model_is_sent_once_and_told(notebook, sent, capsys):
    notebook.run(MODEL)
    notebook.run(SUM)
    assert sum(sent) > 16 << 20
    assert "Sending 16.8 MB: model\n" in capsys.readouterr().out
    assert notebook.names["total"] == total(notebook)

    sent.clear()
    notebook.run(f"{SUM}  # again")
    assert sum(sent) < 100_000
    assert "Sending" not in capsys.readouterr().out
    assert notebook.names["total"] == total(notebook)


def test_tasks_on_the_services_machine_have_its_own_files(notebook, cluster, sent):
    notebook.run(MODEL)
    notebook.run(SUM)
    parts = [*cluster.folder.glob("tasks/*/parts/*")]
    blobs = cluster.folder / "service" / "blobs"
    mine = [part for part in parts if part.stat().st_size == 4 << 20]
    assert len(mine) >= 8
    assert all(part.samefile(blobs / part.name[:2] / part.name) for part in mine)


def test_what_a_rank_writes_to_a_large_value_stays_its_own(notebook, sent):
    notebook.run(MODEL)
    before = total(notebook)
    notebook.run(
        "%%distribute --nodes 2 --pull none\nwith torch.no_grad(): model[0].weight.zero_()\nnone = 0"
    )
    notebook.run(SUM)
    assert notebook.names["total"] == total(notebook) == before


def test_only_what_changed_is_sent(notebook, sent):
    notebook.run(MODEL)
    notebook.run(SUM)
    sent.clear()
    notebook.run("with torch.no_grad(): model[2].weight.add_(1)")
    notebook.run(SUM)
    assert 4 << 20 <= sum(sent) < 5 << 20
    assert notebook.names["total"] == total(notebook)


def test_views_of_one_storage_and_arrays_stay_what_they_are(notebook, sent):
    notebook.run(
        "import torch, numpy as np\nbig = torch.arange(1 << 19, dtype=torch.float64)\nhead = big[:3]\n"
        "array = np.ones(1 << 19)\nframe = bytearray(2 << 20)"
    )
    cell = (
        "%%distribute --nodes 1 --pull found\nhead += 1\narray[0] = 5\nframe[0] = 7\n"
        "found = (big[:3].tolist(), array[:2].tolist(), len(frame), frame[0])"
    )
    for _ in range(2):
        notebook.run(cell)
        assert notebook.names["found"] == ([1.0, 2.0, 3.0], [5.0, 1.0], 2 << 20, 7)
        notebook.run("head[:] = torch.arange(3); array[0] = 1; frame[0] = 0")
    assert sum(sent) < 11 << 20


def test_a_job_takes_its_parts_along(notebook, cluster, service):
    notebook.run(MODEL)
    notebook.run(SUM)
    job = service.jobs(1)[0]
    assert len(service.ask("GET", f"api/jobs/{job.id}").content) < 20_000


def test_after_a_restart_of_the_kernel_what_was_sent_in_parts_is_made_anew(notebook):
    notebook.run(MODEL)
    before = total(notebook)
    job = notebook.run(
        "%%distribute --nodes 1 --detach\nwith torch.no_grad(): model[0].bias.fill_(1.0)\nextra = 1"
    )
    bias = float(notebook.names["model"][0].bias.double().sum())
    notebook.shell.magics_manager.registry["Distribute"]._sent.clear()
    del notebook.names["model"]
    notebook.run(f"%distribute attach {job.id}")
    assert total(notebook) == pytest.approx(before - bias + 1024)


@pytest.mark.parametrize(
    ("made", "change", "length"),
    [
        ("bytearray(2 << 20)", "it.extend(b'more')", (2 << 20) + 4),
        ("array.array('d', bytes(2 << 20))", "it.append(1.0)", (1 << 18) + 1),
    ],
)
def test_what_was_sent_in_parts_may_change_its_size(notebook, made, change, length):
    notebook.run(f"import array\nit = {made}")
    before = notebook.names["it"]
    notebook.run(f"%%distribute --nodes 1\n{change}")
    assert notebook.names["it"] is before and len(before) == length


@pytest.fixture
def earlier(notebook, monkeypatch):
    """Requests to a job service that acts as a release without parts."""
    asked = []
    service = notebook.run("get_ipython().magics_manager.registry['Distribute'].service()")
    ask = service.ask

    def answer(method, path, *args, **more):
        asked.append((method, path))
        if path == "api/missing-blobs":
            path = "api/nobody-knows-this"
        if path == "api/jobs" and "parts" in json.loads(more["content"])["spec"]:
            raise ServiceError("JobSpec has no field parts", code="invalid")
        return ask(method, path, *args, **more)

    monkeypatch.setattr(service, "ask", answer)
    return asked


def test_a_service_that_knows_no_parts_gets_the_cell_in_one_piece(notebook, earlier):
    notebook.run("%%distribute --nodes 1\nsmall = 1")
    assert notebook.names["small"] == 1
    notebook.run(MODEL)
    notebook.run(SUM)
    assert notebook.names["total"] == total(notebook)
    assert earlier.count(("POST", "api/missing-blobs")) == 1


def test_two_ranks_of_a_node_write_to_their_own_and_the_next_cell_has_the_notebooks(notebook):
    notebook.run(MODEL)
    before = total(notebook)
    notebook.run(
        "%%distribute --nodes 1 --ranks-per-node 2 --gather mine\nimport torch, torch.distributed as dist\n"
        "with torch.no_grad(): model[0].weight.fill_(dist.get_rank() + 1)\n"
        "dist.barrier()\nmine = float(model[0].weight.mean())"
    )
    assert notebook.names["mine"] == [1.0, 2.0]
    weight = notebook.names["model"][0].weight
    assert float(weight.detach().mean()) == 1.0
    with notebook.names["torch"].no_grad():
        weight.zero_()
    rest = total(notebook)
    notebook.run(SUM.replace("--nodes 2", "--nodes 1 --ranks-per-node 2"))
    assert notebook.names["total"] == rest != before
    # Ranks' writes do not change the node's cached parts, which stay equal to the notebook's.
    notebook.run(SUM.replace("--nodes 2", "--nodes 1 --ranks-per-node 2"))
    assert notebook.names["total"] == rest


def test_who_resizes_a_large_parameter_is_told_what_to_do(notebook):
    notebook.run(MODEL)
    with pytest.raises(Exception, match=r"torch\.nn\.Parameter"):
        notebook.run("%%distribute --nodes 1\nmodel[0].weight.data.untyped_storage().resize_(8 << 20)")
