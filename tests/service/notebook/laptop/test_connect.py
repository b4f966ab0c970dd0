"""A notebook outside of the hub: connecting by URL and token, and the messages on failure.

The token comes from a file here; that it is asked for, and a real hub's tokens, are tested in tests/hub.
TLS has a file of its own, test_connect_tls.
"""

from __future__ import annotations

import json
import os
import stat

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from minicluster.client.address import Address
from minicluster.client.connect import NotConnected
from minicluster.client.connection import PERMISSIONS, ServiceError
from minicluster.client.credentials import Credentials, SavedCluster
from minicluster.pickling.pickling import NotPicklable
from minicluster.results.results import ResultNotReadable

from .... import messages
from .fronts import answering, free_port
from .laptops import HEALTH, HUB, front, hub_of, kept, laptop, magics, refused

__all__ = ["front", "kept", "laptop"]  # fixtures

# --- it works -------------------------------------------------------------------------------------


def test_a_job_by_url_and_token(laptop, cluster, capsys):
    laptop.run(f"%distribute connect {hub_of(cluster)}hub/home")
    text = capsys.readouterr().out
    assert messages.CONNECTED.format(hub=hub_of(cluster), user="ada") in text
    assert "as on the cluster" in text
    laptop.run("base = 20\ndef twice(x): return 2 * x")
    assert laptop.run("%%distribute --nodes 2\nprint('on a rank')\nanswer = twice(base) + 2\nanswer") == 42
    assert laptop.names["answer"] == 42
    out = capsys.readouterr().out
    assert "on a rank" in out
    service = magics(laptop).service()
    laptop.run(f"%distribute logs {service.jobs()[0].id}")
    assert capsys.readouterr().out == "on a rank\n"
    assert service.browser_path("jobs/1") == f"{cluster.url}jobs/1", "the notebook's page is not the hub's"


def test_back_to_the_hubs_own_cluster(notebook, cluster, capsys):
    notebook.run("%distribute connect")
    assert "this hub's own cluster" in capsys.readouterr().out
    notebook.run("%distribute nodes")
    assert not magics(notebook).service().outside


def test_a_new_kernel_knows_the_cluster_of_the_last_time(kept, cluster, capsys):
    kept.run("%distribute nodes")
    assert messages.CONNECTED.format(hub=hub_of(cluster), user="ada") in capsys.readouterr().out
    kept.run("%distribute connect")
    assert "readable by you alone" in capsys.readouterr().out
    assert stat.S_IMODE(Credentials().path.stat().st_mode) == 0o600


def test_a_container_is_told_by_its_environment(laptop, cluster, monkeypatch):
    monkeypatch.setenv("MINICLUSTER_URL", f"http://127.0.0.1:{cluster.port}/hub/home")
    laptop.run("%distribute nodes")
    assert not Credentials().path.exists(), "a token of the environment is not written anywhere"


def test_forgotten(kept, cluster, capsys):
    kept.run("%distribute disconnect")
    assert f"{hub_of(cluster)}hub/token" in capsys.readouterr().out
    assert "ada-token" not in Credentials().path.read_text()
    kept.fails("%distribute status", NotConnected)


def test_another_users_result_is_not_opened(laptop, cluster, service, tmp_path):
    laptop.run(f"%distribute connect {hub_of(cluster)}")
    laptop.run("%%distribute --nodes 1\n7")
    number = magics(laptop).service().jobs()[0].id
    (tmp_path / "token").write_text("bob-token")
    laptop.run(f"%distribute connect {hub_of(cluster)}")
    assert laptop.fails(f"%distribute result {number}", ServiceError).code == "unknown_job"


# --- tokens ---------------------------------------------------------------------------------------


def test_an_expired_token_says_where_to_make_another(laptop, cluster, tmp_path):
    (tmp_path / "token").write_text("gone-token")
    error = refused(laptop, hub_of(cluster), ServiceError)
    assert "expired" in error
    assert f"{hub_of(cluster)}hub/token" in error
    assert PERMISSIONS in error


def test_a_token_that_expires_later_costs_the_job_nothing(laptop, cluster, service):
    laptop.run(f"%distribute connect {hub_of(cluster)}")
    handle = laptop.run("%%distribute --nodes 1 --detach\nkept = 5")
    Credentials().keep(SavedCluster(url=hub_of(cluster), token="gone-token"))
    os.environ.pop("MINICLUSTER_TOKEN_FILE")
    laptop.shell.magics_manager.registry["Distribute"].use(None)
    assert "expired" in str(laptop.fails(f"%distribute attach {handle.id}", ServiceError))
    Credentials().keep(SavedCluster(url=hub_of(cluster), token="ada-token"))
    laptop.run(f"%distribute attach {handle.id}")
    assert laptop.names["kept"] == 5


def test_no_token_and_nobody_to_ask(laptop, cluster, monkeypatch):
    monkeypatch.setenv("MINICLUSTER_URL", hub_of(cluster))
    monkeypatch.delenv("MINICLUSTER_TOKEN_FILE")
    assert "%distribute connect" in laptop.fails("%distribute status", NotConnected).hint


def test_a_notebook_that_nobody_sits_before(laptop, cluster, monkeypatch):
    monkeypatch.delenv("MINICLUSTER_TOKEN_FILE")
    cells = ["%load_ext minicluster", f"%distribute connect {hub_of(cluster)}"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    with pytest.raises(CellExecutionError) as caught:
        NotebookClient(book, timeout=90, kernel_name="python3").execute()
    assert "cannot ask for the token" in str(caught.value)
    assert "MINICLUSTER_TOKEN_FILE" in str(caught.value)


def test_a_tokens_file_that_is_not_there(laptop, cluster, monkeypatch):
    monkeypatch.setenv("MINICLUSTER_TOKEN_FILE", "/nowhere/token")
    assert "/nowhere/token" in str(laptop.fails(f"%distribute connect {hub_of(cluster)}", NotConnected))


def test_a_notebook_that_knows_no_cluster(laptop):
    assert "connect https://" in laptop.fails("%%distribute\n1", NotConnected).hint


# --- addresses ------------------------------------------------------------------------------------


def test_nobody_listens(laptop):
    port = free_port()
    assert messages.NOTHING_LISTENS.format(port=port) in refused(laptop, f"http://127.0.0.1:{port}/hub/home")


def test_a_name_that_nobody_has(laptop):
    assert "there is no machine named lab.invalid" in refused(laptop, "https://lab.invalid/hub/home")


def test_a_server_that_is_no_hub(laptop):
    with answering({}) as url:
        assert "no JupyterHub" in refused(laptop, url)


def test_a_hub_without_the_service(laptop):
    with answering({**HUB, HEALTH: (302, {"Location": f"/hub{HEALTH}"}, "")}) as url:
        assert "not part of it" in refused(laptop, url)
    with answering({**HUB, HEALTH: (503, {}, "<h1>Service Unavailable</h1>")}) as url:
        assert "its job service does not" in refused(laptop, url)


def test_a_cluster_of_another_wire_version(laptop):
    error = {
        "error": {"code": "wire_version", "message": "this job service speaks version 2", "hint": "install"}
    }
    with answering({HEALTH: (426, {}, json.dumps(error))}) as url:
        assert "speaks version 2" in refused(laptop, url)


def test_a_token_does_not_follow_to_another_machine(laptop):
    with answering({HEALTH: (302, {"Location": "https://elsewhere.invalid/"}, "")}) as url:
        error = refused(laptop, url)
    assert "another machine, elsewhere.invalid" in error


# --- versions -------------------------------------------------------------------------------------


def test_functions_stay_here_when_the_ranks_have_another_python(laptop, cluster, monkeypatch):
    """Only the version is faked: tests/unit has real Pythons of two versions."""
    laptop.run(f"%distribute connect {hub_of(cluster)}")
    laptop.run("%%distribute --nodes 1\n1")
    connected = magics(laptop).service()
    theirs = connected.ranks(None)
    connected._ranks[None] = theirs.model_copy(update={"python": "3.9.1"})
    laptop.run("def helper(): return 1\nnumber = 3")
    error = laptop.fails("%%distribute --nodes 1\nhelper()", NotPicklable)
    assert "`helper`" in error.message
    assert "Python 3.9" in error.message
    assert laptop.run("%%distribute --nodes 1\nnumber + 1") == 4


def test_a_result_with_code_of_another_python_does_not_crash_the_kernel(laptop, cluster, monkeypatch):
    laptop.run(f"%distribute connect {hub_of(cluster)}")
    handle = laptop.run("%%distribute --nodes 1 --detach\ndef made(): return 1")
    laptop.run(f"%distribute attach {handle.id}")
    assert laptop.names["made"]() == 1
    monkeypatch.setattr("minicluster.results.result_file.platform.python_version", lambda: "3.9.1")
    error = laptop.fails(f"%distribute result {handle.id}", ResultNotReadable)
    assert "a function or a class" in error.message
    assert Address(hub_of(cluster)).service == cluster.url
