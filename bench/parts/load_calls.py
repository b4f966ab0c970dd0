"""Users' requests to the job service in bench/load.py."""

from __future__ import annotations

import hashlib
from uuid import uuid4

import httpx

PAGES, TASKS = 200, 2
CELL = b"a cell"
SHA256 = hashlib.sha256(CELL).hexdigest()


def bearer(user: int) -> dict[str, str]:
    return {"Authorization": f"token user-{user}-token"}


class Calls:
    """Sends requests as users of the service; raises if the service answers with an error."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url, self.http = url, http

    async def ask(self, user: int, method: str, path: str, **more: object) -> httpx.Response:
        answer = await self.http.request(method, path, headers=bearer(user), **more)  # type: ignore[arg-type]
        answer.raise_for_status()
        return answer

    async def submit(self, user: int) -> int:
        """Submit a job of one gang, as a notebook does with a new cell; return its id."""
        await self.ask(user, "PUT", f"api/blobs/{SHA256}", content=CELL)
        spec = {"payload_sha256": SHA256, "nodes": {"min": TASKS, "max": TASKS}, "timeout_s": 3600}
        body = {"idempotency_key": uuid4().hex, "spec": spec}
        return (await self.ask(user, "POST", "api/jobs", json=body)).json()["id"]

    async def stop(self, user: int, job: int) -> None:
        await self.ask(user, "POST", f"api/jobs/{job}/stop")

    async def page(self, user: int) -> None:
        """Fetch the data of the page Jobs."""
        await self.ask(user, "GET", "api/jobs", params={"limit": 100})
        await self.ask(user, "GET", "api/queue/me")
