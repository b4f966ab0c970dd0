"""`%distribute doctor`: what stands between a notebook and a run, on a real cluster."""

from minicluster.doctor import Health


def subjects(found):
    return {line.subject: line for line in found.lines}


def test_on_a_healthy_cluster_nothing_stands_in_the_way(notebook):
    notebook.run("%%distribute --nodes 1\n1")
    found = notebook.run("%distribute doctor")
    lines = subjects(found)
    assert not found.problems, found
    assert {"connection", "versions", "slots", "a cell on one node", "a cell on all nodes", "quota"} <= {
        *lines
    }
    assert lines["connection"].found.endswith("as ada")
    assert lines["a cell on all nodes"].found == "would start now"
    assert lines["slots"].found.startswith("3 of 3 slots on 3 nodes")
    assert repr(found).endswith("Nothing stands between this notebook and a run.")
    assert "<table>" in found._repr_html_()


def test_without_a_connection_it_says_what_to_do(notebook, tmp_path, monkeypatch):
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    monkeypatch.delenv("MINICLUSTER_URL")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = notebook.run("%distribute doctor")
    (problem,) = found.problems
    assert problem.subject == "connection" and "%distribute connect" in problem.advice
    assert subjects(found)["disk"].health is Health.OK
    assert "1 problem stands" in repr(found)


def test_a_token_that_the_hub_does_not_know(notebook, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-nobody")
    found = notebook.run("%distribute doctor")
    assert [line.subject for line in found.problems] == ["connection"]
    assert found.problems[0].advice
