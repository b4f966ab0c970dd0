"""A real kernel's answers while a user types a magic's line: Tab, `?` and --help."""

from __future__ import annotations

import pytest
from jupyter_client.manager import start_new_kernel

import minicluster as mc

from ...patience import WITHIN_S, until


class Kernel:
    def __init__(self, client):
        self.client = client

    def run(self, code):
        """Run a cell; return its output and its pager text."""
        printed = []

        def hook(message):
            printed.append(message["content"].get("text", ""))

        reply = self.client.execute_interactive(code, timeout=WITHIN_S, output_hook=hook)["content"]
        pages = [page["data"]["text/plain"] for page in reply.get("payload", ())]
        assert reply["status"] == "ok", reply
        return "".join([*printed, *pages])

    def tab(self, code):
        """Return Tab's completions at | in the code, as whole lines."""
        at = code.index("|")
        code = code.replace("|", "")
        content = self.client.complete(code, at, reply=True, timeout=WITHIN_S)["content"]
        start, end = content["cursor_start"], content["cursor_end"]
        return [f"{code[:start]}{match}{code[end:]}".splitlines()[0] for match in content["matches"]]


@pytest.fixture(scope="module")
def kernel(cluster, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLUSTER_URL", cluster.url)
        patch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
        patch.setenv("JUPYTERHUB_USER", "ada")
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        manager, client = start_new_kernel(kernel_name="python3", startup_timeout=WITHIN_S)
    made = Kernel(client)
    made.run("%load_ext minicluster\nlearning_rate = 0.1\nmodel = 1")
    yield made
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_tab_completes_options(kernel):
    assert kernel.tab("%%distribute --no|\nx = 1") == ["%%distribute --nodes"]
    assert kernel.tab("%%distribute --nodes 3 --fault|\nx = 1") == ["%%distribute --nodes 3 --fault-tolerant"]
    assert {"%%distribute --nodes", "%%distribute --data"} <= {*kernel.tab("%%distribute |\nx = 1")}
    assert "%%distribute --comm localsgd" in kernel.tab("%%distribute --comm |\nx = 1")
    assert kernel.tab("%%distribute --pull model,lea|\nx = 1") == ["%%distribute --pull model,learning_rate"]
    assert kernel.tab("%%distribute --pull=lea|\nx = 1") == ["%%distribute --pull=learning_rate"]


def test_tab_in_the_cells_body_is_pythons(kernel):
    code = "%%distribute --nodes 3\nlearn|"
    at = code.index("|")
    content = kernel.client.complete(code[:-1], at, reply=True, timeout=WITHIN_S)["content"]
    assert "learning_rate" in content["matches"]


def test_tab_completes_commands_and_what_they_take(kernel):
    assert kernel.tab("%distribute sta|") == ["%distribute status"]
    assert kernel.tab("x = 1\n%distribute sta|") == ["x = 1"]
    assert kernel.tab("%distribute data p|") == ["%distribute data push"]
    assert kernel.tab("%distribute data push x --s|") == ["%distribute data push x --shared"]
    assert kernel.tab("%distribute logs 3 --r|") == ["%distribute logs 3 --rank"]


def test_tab_completes_names_of_the_cluster(kernel, service, tmp_path):
    (tmp_path / "a.txt").write_text("one")
    kernel.run(f"%distribute data push {tmp_path} --name tab-birds")
    kernel.run("%%distribute --nodes 1 --name tab\n1")
    job = service.jobs(1)[0].id
    # If the cluster does not answer within a second, its names are offered at the next Tab.
    cell = "%%distribute --nodes 1 --data tab"
    until(lambda: kernel.tab(f"{cell}|\nx = 1") == [f"{cell}-birds"])
    until(lambda: kernel.tab("%distribute data rm tab|") == ["%distribute data rm tab-birds"])
    until(lambda: f"%distribute result {job}" in kernel.tab("%distribute result |"))


def test_tab_behind_mc_shows_what_may_be_called_and_nothing_else(kernel):
    kernel.run("import minicluster as mc\nmc.prepare")
    code = "%%distribute --nodes 1\nmc."
    offered = kernel.client.complete(code, len(code), reply=True, timeout=WITHIN_S)["content"]["matches"]
    assert offered == sorted(mc.__all__, key=str.lower)


def test_help_is_shown_in_each_way(kernel):
    for code in ("%%distribute?", "%%distribute --help", "%%distribute -h\nraise SystemExit"):
        assert "--nodes 3 (or 1:3)             number of nodes" in kernel.run(code), code
    for code in ("%distribute?", "%distribute --help"):
        assert "%distribute logs ID [--rank N]" in kernel.run(code), code
    assert "--to FOLDER" in kernel.run("%distribute files --help")
