"""Which panels a notebook lacks, and to which services its server sends tokens."""

from types import SimpleNamespace

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.client.credentials import Credentials, SavedCluster
from minicluster.origin import page_draws_panels, running_cell
from minicluster.server_extension.base import Place, kernels_paths
from minicluster.server_extension.clusters import Clusters
from minicluster.server_extension.handlers import jobs_to_show
from minicluster.wire import Job, JobState, NotebookCell

HUB = "/services/minicluster/"


def job(number, ended_at=None, **origin):
    state = JobState.RUNNING if ended_at is None else JobState.SUCCEEDED
    came_from = NotebookCell(**{"cell": "c1", **origin})
    return Job(
        id=number, owner="ada", name="cell", state=state, created_at=1.0, ended_at=ended_at, origin=came_from
    )


@pytest.fixture
def place(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.ipynb", "copy.ipynb", "deep/b.ipynb"):
        (tmp_path / name).touch()
    return Place(tmp_path, {"k-1": "renamed.ipynb"})


def shown(jobs, path, place, saved_at=50.0):
    return [one.id for one in jobs_to_show(tuple(jobs), path, saved_at, place)]


def test_a_notebook_lacks_open_jobs_and_those_that_ended_since_it_was_saved(place):
    jobs = [job(1, notebook="a.ipynb"), job(2, 49.0, notebook="a.ipynb"), job(3, 51.0, notebook="a.ipynb")]
    assert shown(jobs, "a.ipynb", place) == [1, 3]


def test_a_copy_of_the_notebook_has_the_same_cells_and_none_of_its_jobs(place):
    assert shown([job(1, notebook="a.ipynb")], "copy.ipynb", place) == []


def test_the_kernels_notebook_is_where_the_server_has_it_now(place):
    jobs = [job(1, notebook="a.ipynb", kernel="k-1")]
    assert shown(jobs, "renamed.ipynb", place) == [1]
    # The kernel's notebook no longer exists there: any notebook with the cell may be it.
    assert shown(jobs, "a.ipynb", place) == [1]


def test_a_path_may_be_absolute_and_a_notebook_moved_while_it_was_closed(place):
    assert shown([job(1, notebook=str(place.root / "deep/b.ipynb"))], "deep/b.ipynb", place) == [1]
    assert shown([job(1, notebook="gone.ipynb")], "deep/b.ipynb", place) == [1]


def test_jobs_of_no_cell_are_nobodys(place):
    assert shown([job(1, cell="", notebook="a.ipynb")], "a.ipynb", place) == []


def test_kernels_paths_come_from_the_sessions():
    sessions = [{"path": "a.ipynb", "kernel": {"id": "k-1"}}, {"path": "console", "kernel": None}]
    assert kernels_paths(sessions) == {"k-1": "a.ipynb"}


def kernel(cell_id):
    parent = SimpleNamespace(connection_file="/run/kernel-3f1d-52.json")
    return SimpleNamespace(get_parent=lambda: {"metadata": {"cellId": cell_id}}, parent=parent)


def test_a_kernel_knows_the_cell_that_it_runs():
    cell = running_cell(kernel("c1"), {"JPY_SESSION_NAME": "a.ipynb"})
    assert cell == NotebookCell(cell="c1", notebook="a.ipynb", kernel="3f1d-52")
    assert running_cell(None) is None


def test_pages_of_a_server_with_the_extension_draw_panels_and_vs_code_does_not():
    extended = {"MINICLUSTER_PANELS": "1"}
    assert page_draws_panels(kernel("c1"), extended)
    assert not page_draws_panels(kernel("c1"), {})
    assert not page_draws_panels(kernel(None), extended)
    assert not page_draws_panels(kernel("vscode-notebook-cell:/a.ipynb#W0"), extended)


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    for name in ("JUPYTERHUB_API_TOKEN", "MINICLUSTER_URL", "MINICLUSTER_TOKEN", "MINICLUSTER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_hubs_token_goes_to_its_own_service_alone(nobody, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    monkeypatch.setenv("MINICLUSTER_URL", f"http://127.0.0.1:8000{HUB}")
    assert Clusters().service(HUB).token == "secret"
    assert Clusters().addresses() == [HUB]
    for address in (
        "/services/other/",
        f"https://evil.example{HUB}",
        f"http://127.0.0.1:8000{HUB}",
        "",
        "//evil/",
    ):
        with pytest.raises(ServiceError) as refused:
            Clusters().service(address)
        assert refused.value.code == "unknown_cluster"


def test_a_hub_with_domains_has_its_service_at_an_address_of_its_own(nobody, monkeypatch):
    pages = f"http://minicluster--service.lab.example{HUB}"
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    monkeypatch.setenv("MINICLUSTER_URL", f"http://127.0.0.1:8082{HUB}")
    monkeypatch.setenv("MINICLUSTER_PAGES", pages)
    assert Clusters().addresses() == [pages]
    service = Clusters().service(pages)
    assert (service.token, service.url) == ("secret", f"http://127.0.0.1:8082{HUB}")
    assert service.browser_path("jobs/7") == service.link("jobs/7") == f"{pages}jobs/7"
    for address in (HUB, f"http://minicluster--service.evil.example{HUB}", ""):
        with pytest.raises(ServiceError):
            Clusters().service(address)


def test_addresses_in_text_are_those_of_browsers(nobody, monkeypatch):
    """A notebook server in a container uses an address of the service that browsers cannot reach."""
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_HUB_URL", "https://lab.example/hub/")
    service = JobServiceClient(f"http://service:8082{HUB}", "secret")
    assert service.browser_path("jobs/7") == f"{HUB}jobs/7"
    assert service.link("jobs/7") == f"https://lab.example{HUB}jobs/7"


def test_a_laptop_speaks_to_the_clusters_that_its_user_connected_to(nobody):
    Credentials().keep(SavedCluster(url="https://lab.example/", token="mine"))
    assert Clusters().addresses() == [f"https://lab.example{HUB}"]
    assert Clusters().service(f"https://lab.example{HUB}").token == "mine"
    for address in (HUB, f"https://evil.example{HUB}", "https://lab.example/services/other/", "ftp://x/"):
        with pytest.raises(ServiceError) as refused:
            Clusters().service(address)
        assert refused.value.code == "unknown_cluster"
