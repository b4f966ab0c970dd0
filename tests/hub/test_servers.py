"""Users' notebook servers: separate homes without access by others; all their processes end with them."""

from __future__ import annotations

import stat
import zipfile
from importlib import metadata
from pathlib import Path

import httpx
import psutil
import pytest

from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.support.processes import SERVER_LABEL, find, labelled, lives

from ..patience import eventually
from .conftest import Lab


def home(lab: Lab, name: str) -> Path:
    return lab.cluster.data / "homes" / name


async def test_a_home_is_private_and_holds_the_examples(lab: Lab, ada: Visitor, tree: Path) -> None:
    assert stat.S_IMODE(home(lab, "ada").stat().st_mode) == 0o700
    given = {path.name for path in (tree / "notebooks").iterdir() if path.is_file()}
    assert {"cinic10.ipynb", "cinic10_data.py"} <= given
    assert given <= {path.name for path in home(lab, "ada").iterdir()}


async def test_a_kernel_knows_its_user_and_the_magics_and_holds_no_gpu(lab: Lab, ada: Visitor) -> None:
    async with open_kernel(ada, "quickstart.ipynb") as kernel:
        environment = await kernel.evaluate("[__import__('os').environ[n] for n in ('HOME', 'USER')]")
        assert environment == repr([str(home(lab, "ada")), "ada"])
        assert await kernel.evaluate("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == "''"
        assert await kernel.evaluate("'distribute' in get_ipython().magics_manager.magics['cell']") == "True"


async def test_another_users_server_is_closed(lab: Lab, ada: Visitor, grace: Visitor) -> None:
    secret = home(lab, "ada") / "secret.txt"
    secret.write_text("only ada's")
    for path in ("/user/ada/lab", "/user/ada/api/contents/secret.txt", "/user/ada/files/secret.txt"):
        page = await grace.http.get(path)
        assert page.status_code == httpx.codes.FORBIDDEN, path
        assert "only ada's" not in page.text
    own = await ada.call("GET", "/user/ada/api/contents/secret.txt", "/user/ada/")
    assert own["content"] == "only ada's"


async def test_a_server_shows_nothing_outside_of_its_home(lab: Lab, ada: Visitor, grace: Visitor) -> None:
    (home(lab, "ada") / "secret.txt").write_text("only ada's")
    for path in ("../ada/secret.txt", "%2E%2E/ada/secret.txt", "..%2Fada%2Fsecret.txt"):
        for kind in ("api/contents", "files"):
            page = await grace.http.get(f"/user/grace/{kind}/{path}")
            assert page.is_error, f"{kind}/{path}"
            assert "only ada's" not in page.text


async def test_stopping_a_server_ends_all_that_it_started(lab: Lab, hedy: Visitor) -> None:
    async with open_kernel(hedy, "quickstart.ipynb") as kernel:
        stray = "__import__('subprocess').Popen(['sleep', '600'], start_new_session=True).pid"
        pid = int(await kernel.evaluate(stray))
    process = psutil.Process(pid)
    assert lives(process)
    await stop_server(hedy)
    assert not lives(process)
    await hedy.start_server()


async def stop_server(visitor: Visitor) -> None:
    """Stop a server as the hub's home page does, and wait until nothing of it is left."""
    await visitor.call("DELETE", f"/hub/api/users/{visitor.name}/server", "/hub/")
    await eventually(lambda: not find(labelled(**{SERVER_LABEL: f"{visitor.name}/"})))


@pytest.mark.full("about the examples alone")
async def test_notebooks_that_a_user_changed_or_deleted_stay_so(lab: Lab, hedy: Visitor) -> None:
    notebook = home(lab, "hedy") / "quickstart.ipynb"
    kept = notebook.read_bytes()
    for text in (b"changed", None):
        if text is None:
            notebook.unlink()
        else:
            notebook.write_bytes(text)
        await stop_server(hedy)
        await hedy.start_server()
        assert (notebook.read_bytes() if notebook.exists() else None) == text
    notebook.write_bytes(kept)


def wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """Write a package without code."""
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {other}\n" for other in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        made.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{about}/RECORD", "")


async def test_pip_in_a_notebook_does_not_replace_the_clusters_torch(
    lab: Lab, ada: Visitor, tmp_path: Path
) -> None:
    wheel(tmp_path, "torch", "1.0")
    wheel(tmp_path, "seeing", "1.0", "torch==1.0")
    wheel(tmp_path, "hearing", "1.0", "torch>=2")
    # Nothing is installed here: this environment is the tests' own.
    install = f"%pip install --dry-run --no-index --find-links {tmp_path}"
    async with open_kernel(ada, "quickstart.ipynb") as kernel:
        (refused,) = await kernel.run(f"{install} seeing")
        assert f"(constraint) torch=={metadata.version('torch')}" in refused["text"], refused["text"]
        assert "seeing 1.0 depends on torch==1.0" in refused["text"]
        assert "Would install" not in refused["text"]
        taken = await kernel.run(f"{install} hearing")
        assert any("Would install hearing-1.0" in output.get("text", "") for output in taken), taken


async def test_a_job_is_called_by_its_notebook_and_cell_unless_it_has_a_name(lab: Lab, ada: Visitor) -> None:
    async with open_kernel(ada, "quickstart.ipynb") as kernel:
        await kernel.run("1")
        await kernel.run("%%distribute --nodes 1 --detach\nby_itself = 1")
        assert await kernel.evaluate("_2.job.name") == "'quickstart [2]'"
        await kernel.run("%%distribute --nodes 1 --detach --name mine\nby_me = 1")
        assert await kernel.evaluate("_3.job.name") == "'mine'"
