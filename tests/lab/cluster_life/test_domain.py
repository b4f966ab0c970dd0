"""`up --domain`: the hub has a domain, each user's server a subdomain, and cells train."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from minicluster_hub.cluster.plan.certificates import Certificates, make_ca_and_cert

from ... import messages
from ...browser import chromium
from ...browser.lab import JOBS_PATH, open_jobs, open_notebook, output_of, run_cell, wait_ran
from ..cluster import LabCluster
from ..machines.processes import wait_for
from ..pages import WAIT_MS, put_notebook, start_server, stop_server
from ..remains import check_nothing_left

DOMAIN, USER = "hub.lab.test", "delia"
HUB, SERVICE, SERVER = (f"https://{name}{DOMAIN}" for name in ("", "minicluster--service.", f"{USER}."))
READY_WITHIN_S = 120
CELL = """%%distribute --nodes 3 --gather total
import torch
import torch.distributed as dist
dist.init_process_group()
ones = torch.ones(1)
dist.all_reduce(ones)
total = ones.item()
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Certificates, Path]]:
    """Certificates with and without the subdomains, as files in two folders."""
    found = {}
    for kind, names in (("both", [DOMAIN, f"*.{DOMAIN}"]), ("one", [DOMAIN])):
        made, folder = make_ca_and_cert(names), tmp_path_factory.mktemp(kind)
        (folder / "cert.pem").write_text(made.cert_pem)
        (folder / "key.pem").write_text(made.key_pem)
        found[kind] = (made, folder)
    return found


def up(cluster: LabCluster, folder: Path) -> str:
    """Run the guide's `up --domain` on the standing cluster, with a folder's certificate."""
    arguments = [
        *cluster.up_words,
        f"--domain={DOMAIN}",
        "--tls-cert=/certs/cert.pem",
        "--tls-key=/certs/key.pem",
    ]
    cluster.forget_options()
    command = cluster.docker_run(*arguments, volumes=(f"{folder}:/certs:ro",))
    done = cluster.first.run(command, check=False, within_s=READY_WITHIN_S)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def ready(standing: LabCluster, certificates: dict[str, tuple[Certificates, Path]]) -> Iterator[LabCluster]:
    """The cluster with a domain; afterwards, the domain is removed."""
    standing.set_options()
    assert warns_of_one_origin(standing)
    assert f"*.{DOMAIN}" in up(standing, certificates["one"][1])
    assert warns_of_one_origin(standing), "what is refused changes nothing"
    output = up(standing, certificates["both"][1])
    assert f"{messages.READY}{HUB}\n" in output, output
    yield standing
    standing.up("--domain=none", "--self-made")
    standing.forget_options()
    assert warns_of_one_origin(standing)


@pytest.fixture
def page(needs: Callable[[object, str], None], ready: LabCluster) -> Iterator[Page]:
    """A browser page that resolves names as in the lab's DNS zone."""
    needs(chromium.program(), chromium.MISSING)
    with chromium.browser(f"--host-resolver-rules=MAP *.lab.test {ready.first.address}") as running:
        yield new_page(running)


def new_page(browser: Browser) -> Page:
    return browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 900}).new_page()


def warns_of_one_origin(cluster: LabCluster) -> bool:
    return "domain" in {one["check"] for one in cluster.doctor()}


def test_doctor_has_nothing_to_say_of_it(ready: LabCluster) -> None:
    assert not warns_of_one_origin(ready)


def test_all_names_show_the_labs_certificate(
    ready: LabCluster, certificates: dict[str, tuple[Certificates, Path]]
) -> None:
    trusted = ssl.create_default_context(cadata=certificates["both"][0].ca_pem)
    for url in (HUB, SERVICE, SERVER):
        with (
            socket.create_connection((ready.first.address, 443)) as line,
            trusted.wrap_socket(line, server_hostname=url.removeprefix("https://")),
        ):
            pass


def test_the_job_service_is_at_the_hubs_name_too_for_notebooks_outside(ready: LabCluster) -> None:
    address = f"https://{ready.first.address}{JOBS_PATH}health"
    with httpx.Client(verify=False, trust_env=False, headers={"Host": DOMAIN}) as http:
        wait_for(lambda: http.get(address).status_code == httpx.codes.OK, "its route", READY_WITHIN_S, 0.5)
        assert "wire_version" in http.get(address).json()


def test_a_user_trains_from_a_server_with_a_name_of_its_own(ready: LabCluster, page: Page) -> None:
    start_server(page, ready, USER, node=ready.first.name, url=HUB)
    assert page.url.startswith(f"{SERVER}/user/{USER}/lab")
    put_notebook(ready, "sum.ipynb", CELL, "total")
    open_notebook(page, SERVER, USER, "sum.ipynb")
    wait_ran(sums := run_cell(page, 0), WAIT_MS)
    expect(sums.locator(".mc-picture")).to_contain_text(messages.SUCCEEDED.format(ranks=3))
    expect(output_of(run_cell(page, 1))).to_contain_text("[3.0, 3.0, 3.0]")
    open_jobs(page, HUB)
    assert page.url == f"{SERVICE}{JOBS_PATH}jobs", "where no page of a user's server is"
    expect(page.get_by_role("row").filter(has_text="succeeded")).to_have_count(1)
    stop_server(page, HUB)
    check_nothing_left(ready)
