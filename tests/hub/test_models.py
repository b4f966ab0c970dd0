"""Who may ask a served model, by what the hub says of tokens; and the notebook about it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import nbformat
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.visitor import Visitor

from ..patience import WITHIN_S
from .conftest import Lab
from .test_scopes import client_with, token_with

pytest.importorskip("litserve")

SERVE = """def double(numbers):
    return [2 * one for one in numbers["numbers"]]
example = {"numbers": [1, 2]}
%serve double --name double --example example"""
ACCESS = "access:services!service=minicluster"


async def run(kernel: KernelConnection, source: str) -> None:
    outputs = await kernel.run(source)
    assert not [one for one in outputs if one.output_type == "error"], outputs


async def test_a_token_asks_the_models_that_its_scopes_are_for(
    lab: Lab, ada: Visitor, grace: Visitor
) -> None:
    async with open_kernel(ada, "quickstart.ipynb") as kernel:
        await run(kernel, SERVE)
    path, body = "answers/ada/double/predict", {"numbers": [1, 2]}
    models = await token_with(ada, ACCESS, "custom:minicluster:models!user")
    reads = await token_with(ada, ACCESS, "custom:minicluster:read!user")
    other = await token_with(grace, ACCESS, "custom:minicluster:models!user")
    found: dict[str, int] = {}
    for name, token in (("models", models), ("reads", reads), ("other", other), ("none", "0123456789abcdef")):
        async with client_with(lab, token) as api:
            # The second request of a token that may ask goes through the front.
            answers = [await api.post(path, json=body) for _ in range(2)]
            assert answers[0].status_code == answers[1].status_code, name
            found[name] = answers[0].status_code
    assert found == {"models": 200, "reads": 404, "other": 404, "none": 401}
    async with client_with(lab, models) as api:
        assert (await api.post(path, json=body)).json() == [2, 4]
        # It asks models, and does nothing else.
        assert (await api.get("api/models")).status_code == httpx.codes.FORBIDDEN
        assert (await api.get("api/jobs")).status_code == httpx.codes.FORBIDDEN
    await _a_cookie_lets_no_header_in(lab, ada, path, body)
    async with open_kernel(ada, "quickstart.ipynb") as kernel:
        await run(kernel, SERVE + " --shared")

        async with asyncio.timeout(WITHIN_S), client_with(lab, other) as api:
            while (await api.post(path, json=body)).status_code != httpx.codes.OK:
                await asyncio.sleep(0.05)
        await run(kernel, "%serve stop double")


async def _a_cookie_lets_no_header_in(lab: Lab, ada: Visitor, path: str, body: object) -> None:
    """A login's cookie counts with the page's token alone; what stands beside it in a header never does."""
    made_up = {"Authorization": "Bearer of-bad-news"}
    url = f"{SERVICE_PATH}{path}"
    assert (await ada.http.post(url, json=body)).status_code == httpx.codes.FORBIDDEN
    xsrf = {"X-XSRFToken": ada.xsrf(SERVICE_PATH)}
    assert (await ada.http.post(url, json=body, headers=xsrf)).status_code == httpx.codes.OK
    await ada.http.post(url, json=body, headers={**xsrf, **made_up})
    async with httpx.AsyncClient(base_url=lab.service_url, headers=made_up, timeout=WITHIN_S) as stranger:
        assert (await stranger.post(path, json=body)).status_code == httpx.codes.UNAUTHORIZED


@pytest.mark.full("tests/service/notebook/test_serve has its parts without a hub")
async def test_the_notebook_serving_runs_as_it_is(ada: Visitor, tree: Path) -> None:
    notebook = nbformat.read(tree / "notebooks" / "serving.ipynb", as_version=4)
    async with open_kernel(ada, "serving.ipynb") as kernel:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                await run(kernel, cell.source)
        assert float(await kernel.evaluate("after")) > 0.85
