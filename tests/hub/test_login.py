"""Who can log in, and the messages for others."""

from __future__ import annotations

import httpx
import pytest

from minicluster.wire import VERSION_HEADER, WIRE_VERSION
from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor

from ..patience import WITHIN_S
from .conftest import Lab


async def test_a_user_lands_in_jupyterlab(lab: Lab, ada: Visitor) -> None:
    page = await ada.http.get("/")
    assert page.url.path == "/user/ada/lab"
    assert "jupyter-config-data" in page.text


async def test_two_users_are_two_users(lab: Lab, ada: Visitor, grace: Visitor) -> None:
    for visitor in (ada, grace):
        home = await visitor.http.get("/hub/home")
        assert f'user: "{visitor.name}"' in home.text


@pytest.mark.parametrize("name", ["ada", "nobody", "../ada", "ada\x00", "", "root"])
async def test_a_wrong_password_and_an_unknown_user_hear_the_same(lab: Lab, name: str) -> None:
    async with Visitor(lab.cluster.url, name) as visitor:
        page = await visitor.log_in("wrong")
        assert page.status_code == httpx.codes.FORBIDDEN
        assert "Invalid username or password" in page.text
        assert (await visitor.http.get("/hub/home")).url.path == "/hub/login"


@pytest.mark.parametrize(
    "path",
    ["/hub/home", "/hub/spawn", "/hub/token", "/hub/admin", "/user/ada/lab", SERVICE_PATH],
)
async def test_a_stranger_sees_only_the_login_page(lab: Lab, ada: Visitor, path: str) -> None:
    async with Visitor(lab.cluster.url, "stranger") as visitor:
        page = await visitor.http.get(path)
        assert page.url.path == "/hub/login"
        assert 'name="password"' in page.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/hub/api/users"),
        ("POST", "/hub/api/users/ada/server"),
        ("POST", "/hub/api/users/ada/tokens"),
        ("GET", f"{SERVICE_PATH}api/jobs"),
        ("GET", f"{SERVICE_PATH}api/nodes"),
        ("POST", f"{SERVICE_PATH}api/jobs"),
        ("POST", f"{SERVICE_PATH}api/tasks/report"),
        ("GET", "/user/ada/api/contents/quickstart.ipynb"),
    ],
)
async def test_a_strangers_call_is_refused(lab: Lab, ada: Visitor, method: str, path: str) -> None:
    async with Visitor(lab.cluster.url, "stranger") as visitor:
        answer = await visitor.http.request(method, path, headers={VERSION_HEADER: str(WIRE_VERSION)})
        assert answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}


async def test_a_login_form_without_its_token_is_refused(lab: Lab) -> None:
    async with httpx.AsyncClient(base_url=lab.cluster.url, trust_env=False, timeout=WITHIN_S) as http:
        form = {"username": "ada", "password": lab.passwords["ada"]}
        answer = await http.post("/hub/login", data=form)
    assert answer.status_code == httpx.codes.FORBIDDEN
    assert "Try again" in answer.text


async def test_a_new_password_counts_at_once(lab: Lab) -> None:
    first = lab.cluster.add_user("emmy")
    async with Visitor(lab.cluster.url, "emmy") as visitor:
        assert (await visitor.log_in(first)).status_code == httpx.codes.OK
