"""A user without a browser: sends the login form, follows redirects, stores cookies."""

from __future__ import annotations

import json
import re
from types import TracebackType
from typing import Any

import httpx

from minicluster_hub.launch.errors import VisitFailed

_XSRF_INPUT = re.compile(r'name="_xsrf"\s+value="([^"]+)"')
_SERVER_LIMIT_S = 120.0


class Visitor:
    """One user's session with the hub at `url`. verify: False accepts a self-signed certificate."""

    def __init__(self, url: str, name: str, *, verify: bool = True) -> None:
        self.url = url
        self.name = name
        self.verify = verify
        self.http = httpx.AsyncClient(
            base_url=url, follow_redirects=True, timeout=60.0, trust_env=False, verify=verify
        )

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()

    @property
    def server_path(self) -> str:
        return f"/user/{self.name}/"

    async def log_in(self, password: str) -> httpx.Response:
        """Send the login form; return the page that a browser would show next."""
        page = await self.http.get("/hub/login")
        found = _XSRF_INPUT.search(page.text)
        if found is None:
            raise VisitFailed(f"{page.url} (status {page.status_code}) shows no login form")
        form = {"username": self.name, "password": password, "_xsrf": found.group(1)}
        return await self.http.post("/hub/login", data=form)

    async def start_server(self) -> None:
        """Request the notebook server, wait until the hub reports it ready, and open JupyterLab."""
        await self.http.get(f"/hub/spawn/{self.name}")
        await self.wait_server()

    async def wait_server(self) -> None:
        """Wait until the hub reports a requested server ready, and open JupyterLab."""
        address = f"/hub/api/users/{self.name}/server/progress"
        async with self.http.stream(
            "GET", address, headers={"X-XSRFToken": self.xsrf("/hub/")}, timeout=_SERVER_LIMIT_S
        ) as events:
            await _wait_until_ready(events)
        page = await self.http.get(f"{self.server_path}lab")
        if page.status_code != httpx.codes.OK:
            raise VisitFailed(f"JupyterLab answers {page.status_code} at {page.url}")

    def xsrf(self, path: str) -> str:
        """Return the XSRF token of the pages under a path: hub, server and service have one each."""
        for cookie in self.http.cookies.jar:
            if cookie.name == "_xsrf" and cookie.path == path:
                return cookie.value or ""
        return ""

    def cookies_for(self, path: str) -> str:
        """Return the Cookie header for an address, for a client with no access to the cookie jar."""
        request = self.http.build_request("GET", path)
        return request.headers.get("cookie", "")

    async def call(self, method: str, path: str, under: str, **arguments: Any) -> Any:
        """Call a REST address with cookies and XSRF token, as a page's script does; return its JSON."""
        headers = {"X-XSRFToken": self.xsrf(under)}
        answer = await self.http.request(method, path, headers=headers, **arguments)
        if answer.is_error:
            raise VisitFailed(f"{method} {path} answers {answer.status_code}: {answer.text[:500]}")
        return answer.json() if answer.content else None


async def _wait_until_ready(events: httpx.Response) -> None:
    last = ""
    async for line in events.aiter_lines():
        if not line.startswith("data:"):
            continue
        event = json.loads(line.removeprefix("data:"))
        last = event.get("message", last)
        if event.get("ready"):
            return
        if event.get("failed"):
            break
    raise VisitFailed(f"the notebook server did not start (status {events.status_code}): {last}")
