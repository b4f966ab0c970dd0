"""`%pip install`, then `%distribute`: publish, --sync-env, and the message without either."""

import asyncio
import site
import tarfile
from pathlib import Path

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.display.failures import DistributedCellError
from minicluster.publishing.commands import NotPublished
from minicluster.publishing.site import NotReplayable
from minicluster.wire import LAYER_FILE, LAYER_ROOT

from ... import messages
from ..notebook.conftest import hub_url, notebook
from .cluster import cluster_with_images, pushed_base

__all__ = ["hub_url", "notebook"]  # fixtures


@pytest.fixture(scope="module")
def base(registry):
    return asyncio.run(pushed_base(registry))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, hub_url, registry, base, environment):
    made = cluster_with_images(tmp_path_factory.mktemp("cluster"), hub_url, registry, base, environment)
    yield made
    made.end()


@pytest.fixture
def user(notebook, environment, base, tmp_path, monkeypatch):
    """A notebook in the base image; `user(words)` is its %pip install."""
    monkeypatch.setenv("MINICLUSTER_IMAGE", base)
    user_base = tmp_path / "local"

    def install(*words):
        environment.pip_install(user_base, *words)
        (folder,) = user_base.glob("lib/python*/site-packages")
        monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
        monkeypatch.setattr(site, "USER_SITE", str(folder))
        monkeypatch.syspath_prepend(str(folder))

    return install


def test_what_was_installed_becomes_an_image(notebook, user, cluster, base):
    user("tinycolours==1.0", "tinyshape")
    made = notebook.run("%distribute publish vision --description 'colours and shapes'")
    assert "vision is published" in repr(made) and "tinycolours 1.0, tinyshape 2.0" in repr(made)
    assert "%%distribute --image vision" in repr(made)
    assert made.image.base_digest == base.partition("@")[2]
    assert all(pin.sha256 for pin in made.image.packages)
    table = repr(notebook.run("%distribute images"))
    assert "colours and shapes" in table and "notebook" in table
    service = JobServiceClient(cluster.url, "ada-token")
    (job,) = (job for job in service.jobs() if job.name == "publish vision")
    layer = Path("layer.tar.gz")
    with layer.open("w+b") as file:
        service.download(f"api/jobs/{job.id}/files/{LAYER_FILE}", file)
    with tarfile.open(layer) as archive:
        names = archive.getnames()
    service.close()
    assert f"{LAYER_ROOT}/bin/tinycolours" in names
    again = notebook.run("%distribute publish vision")
    assert again.image.digest == made.image.digest
    other = repr(notebook.run("%distribute publish sight"))
    assert "No image sight was made" in other and "it is vision, of ada" in other


@pytest.mark.full("test_layer has pips words without a job")
def test_a_publish_that_fails_in_pip_fails_with_pips_own_line(notebook, user, index):
    index.add("tinyghost", "1.0", {"tinyghost.py": ""})
    user("tinyghost")
    index.remove("tinyghost", "1.0")
    error = notebook.fails("%distribute publish ghosts", DistributedCellError)
    assert "ERROR: Could not find" in str(error) and "tinyghost==1.0" in str(error)


def test_a_package_from_a_folder_is_refused_by_name(notebook, user, tmp_path):
    project = tmp_path / "mine"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    (project / "backend.py").write_text(BACKEND)
    user("--no-build-isolation", str(project))
    error = notebook.fails("%distribute publish mine", NotReplayable)
    assert f"mine {messages.INSTALLED_FROM_HERE}" in str(error)
    notebook.fails("%%distribute --sync-env --nodes 1\n1", NotReplayable)


BACKEND = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
from index import build_wheel as build

def build_wheel(target, *_):
    from pathlib import Path
    build(Path(target, "mine-1.0-py3-none-any.whl"), "mine", "1.0", {{"mine.py": ""}})
    return "mine-1.0-py3-none-any.whl"
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("publish vision", "Nothing was installed here with pip"),
        ("publish Vision", "is no name for an image"),
    ],
)
def test_what_cannot_be_published_starts_no_job(notebook, user, cluster, line, said):
    service = JobServiceClient(cluster.url, "ada-token")
    before = len(service.jobs())
    assert said in str(notebook.fails(f"%distribute {line}", NotPublished))
    assert len(service.jobs()) == before
    service.close()


def test_a_name_of_the_clusters_is_taken(notebook, user):
    user("tinyshape")
    error = notebook.fails("%distribute publish notebook", NotPublished)
    assert "image notebook already, of the cluster" in str(error)


def test_a_cell_says_what_the_ranks_lack_before_it_starts(notebook, user, capsys):
    user("tinycolours==1.1")
    notebook.run("%%distribute --nodes 1\ncolour = 'RED'")
    assert "installed with pip" not in capsys.readouterr().out
    notebook.run("import tinycolours as tc")
    notebook.fails("%%distribute --nodes 1\ncolour = tc.RED", DistributedCellError)
    text = capsys.readouterr().out
    assert "tinycolours was installed with pip" in text and f"{messages.RANKS_LACK} it" in text
    assert "%distribute publish NAME" in text and "--sync-env" in text


@pytest.mark.full("in the gate what was installed becomes an image")
def test_sync_env_has_the_ranks_import_it(notebook, user, capsys):
    user("tinycolours==1.1")
    cell = "%%distribute --nodes 2 --sync-env\nimport tinycolours\ncolour = tinycolours.RED"
    notebook.run(cell)
    assert notebook.names["colour"] == "ee0000"
    assert f"the {messages.RANKS_LACK} it" not in capsys.readouterr().out
    notebook.run(cell)  # on the warm gang, which has the package
    notebook.fails("%%distribute --nodes 2\nimport tinycolours", DistributedCellError)


def test_what_pip_says_on_a_task_is_the_jobs_error(notebook, user, index):
    index.add("tinyspirit", "1.0", {"tinyspirit.py": ""})
    user("tinyspirit")
    index.remove("tinyspirit", "1.0")
    error = notebook.fails("%%distribute --nodes 2 --sync-env\nimport tinyspirit", DistributedCellError)
    assert "ERROR: Could not find" in str(error) and "tinyspirit==1.0" in str(error)


@pytest.mark.full("in the gate a cell says what its image lacks")
def test_a_cell_in_an_image_that_has_it_says_nothing(notebook, user, capsys):
    user("tinyshape")
    notebook.run("%distribute publish shapes")
    capsys.readouterr()
    # Its tasks still run in the base environment, so only messages are checked.
    notebook.fails("%%distribute --nodes 1 --image shapes\nimport tinyshape", DistributedCellError)
    assert "installed with pip" not in capsys.readouterr().out
