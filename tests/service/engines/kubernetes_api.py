"""The part of the Kubernetes API that the engine uses, as an HTTP server in this process, without kubelets.

A stand-in, since the real one is built from its source in minutes (tests/kubernetes has it, and the suite of
all engines). It is for what that one cannot be made to do: answers that are lost, refusals, restarts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

Document = dict[str, Any]
_NAMED = re.compile(
    r"(.*/(?:pods|secrets|services|networkpolicies|leases|nodes|persistentvolumeclaims|workloads))/([^/]+)"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class KubernetesServer:
    """objects: by path and name. runs_pods: whether new pods run at once, on the node that they name."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.objects: dict[str, dict[str, Document]] = {}
        self.runs_pods = True
        self.dead_kubelets: set[str] = set()
        """Nodes whose pods stay when they are deleted, unless by force."""
        self.fails: Callable[[str, str], int] = lambda _method, _path: 0
        """Called with method and path before a request; a status that is not 0 is the answer."""
        self.loses_answer_to = ""
        """The next request "METHOD PATH" is carried out, and its answer is lost."""
        self.requests: list[str] = []
        self.used: set[tuple[str, str]] = set()
        """The rights that requests needed, as a role names them: resource and verb."""
        self._version = 100
        self._watches: list[tuple[str, asyncio.Queue[str]]] = []
        self._runner: web.AppRunner | None = None
        self.url = ""
        for name in nodes:
            self.put("/api/v1/nodes", _node(name))

    async def start(self, folder: Path) -> str:
        """Listen; return the path of a kubeconfig."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        file = folder / "kubeconfig"
        file.write_text(json.dumps(_kubeconfig(self.url)))
        return str(file)

    async def stop(self) -> None:
        if self._runner is not None:
            self.forget_watches()
            await self._runner.cleanup()

    def forget_watches(self) -> None:
        """End all watches, as a server that restarts does."""
        for _, queue in self._watches:
            queue.put_nowait("")

    def expire_watches(self) -> None:
        """End all watches by the event that the server no longer knows their version."""
        expired = {"kind": "Status", "code": 410, "message": "too old resource version"}
        for _, queue in self._watches:
            queue.put_nowait(json.dumps({"type": "ERROR", "object": expired}) + "\n")
            queue.put_nowait("")

    # --- objects ------------------------------------------------------------------------------

    def put(self, path: str, document: Document) -> Document:
        """Create or change an object, and tell those who watch."""
        self._version += 1
        name = document["metadata"]["name"]
        known = self.objects.setdefault(path, {})
        kind = "MODIFIED" if name in known else "ADDED"
        document["metadata"]["resourceVersion"] = str(self._version)
        known[name] = document
        self._tell(path, kind, document)
        return document

    def remove(self, path: str, name: str) -> None:
        found = self.objects[path].pop(name)
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._tell(path, "DELETED", found)

    def change(self, path: str, name: str, **status: Any) -> None:
        """Change an object's status."""
        found = json.loads(json.dumps(self.objects[path][name]))
        found.setdefault("status", {}).update(status)
        self.put(path, found)

    def names(self, kind: str) -> set[str]:
        """Return the names of all objects of a kind: pods."""
        return {name for path, known in self.objects.items() if path.endswith(f"/{kind}") for name in known}

    def _tell(self, path: str, kind: str, document: Document) -> None:
        line = json.dumps({"type": kind, "object": document}) + "\n"
        for watched, queue in self._watches:
            if watched == path:
                queue.put_nowait(line)

    # --- requests -----------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        method, path = request.method, request.path
        self.used.add(_right(request))
        if "watch" not in request.query:
            self.requests.append(f"{method} {path}")
        if status := self.fails(method, path):
            return _status(status, "as the test wants it")
        if "watch" in request.query:
            return await self._watch(request, path)
        answer = await self._carry_out(request, method, path)
        if f"{method} {path}" == self.loses_answer_to:
            self.loses_answer_to = ""
            return _status(503, "the answer is lost")
        return answer

    async def _carry_out(self, request: web.Request, method: str, path: str) -> web.Response:
        if path.endswith("/log"):
            return web.Response(text="the last words\n")
        named = _NAMED.fullmatch(path)
        if method == "GET" and not named:
            listed = list(self.objects.get(path, {}).values())
            version = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": version, "items": [o for o in listed if _has(o, request)]})
        document = await request.json() if request.can_read_body else {}
        if method == "POST":
            return self._create(path, document)
        assert named is not None
        return self._change(method, named[1], named[2], document)

    def _create(self, path: str, document: Document) -> web.Response:
        if document["metadata"]["name"] in self.objects.get(path, {}):
            return _status(409, "already exists")
        if path.endswith("/services"):
            document["spec"]["clusterIP"] = "10.96.0.7"
        if path.endswith("/pods"):
            document["status"] = {"phase": "Pending"}
            if self.runs_pods:
                self._run(document)
        return web.json_response(self.put(path, document))

    def _run(self, pod: Document) -> None:
        terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
        for term in terms.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
            "nodeSelectorTerms", []
        ):
            pod["spec"]["nodeName"] = term["matchFields"][0]["values"][0]
        running = {"name": "main", "state": {"running": {}}}
        pod["status"] = {"phase": "Running", "podIP": "10.1.0.9", "containerStatuses": [running]}

    def _change(self, method: str, path: str, name: str, document: Document) -> web.Response:
        found = self.objects.get(path, {}).get(name)
        if found is None and method != "PATCH":
            return _status(404, f"{name} not found")
        if found is None:
            self.used.add((path.rpartition("/")[2], "create"))
        if method == "GET":
            return web.json_response(found)
        if method == "DELETE":
            return self._delete(path, name, found or {}, by_force=document.get("gracePeriodSeconds") == 0)
        if method == "PUT" and document["metadata"].get("resourceVersion") != _version(found):
            return _status(409, "the object has been modified")
        return web.json_response(self.put(path, _merged(found or {}, document)))

    def _delete(self, path: str, name: str, found: Document, *, by_force: bool) -> web.Response:
        if found.get("spec", {}).get("nodeName") in self.dead_kubelets and not by_force:
            marked = {**found, "metadata": {**found["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}}
            return web.json_response(self.put(path, marked))
        self.remove(path, name)
        return web.json_response({"status": "Success"})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[str] = asyncio.Queue()
        version = int(request.query["resourceVersion"])
        for one in self.objects.get(path, {}).values():
            if int(one["metadata"]["resourceVersion"]) > version:
                queue.put_nowait(json.dumps({"type": "MODIFIED", "object": one}) + "\n")
        watching = path, queue
        self._watches.append(watching)
        try:
            while line := await queue.get():
                await response.write(line.encode())
        finally:
            self._watches.remove(watching)
        return response


def _right(request: web.Request) -> tuple[str, str]:
    """Return the resource and the verb of the right that a request needs."""
    if request.path.endswith("/log"):
        return "pods/log", "get"
    named = _NAMED.fullmatch(request.path)
    verb = _VERBS.get(request.method) or ("get" if named else "list")
    kind = (named[1] if named else request.path).rpartition("/")[2]
    return kind, "watch" if "watch" in request.query else verb


def _version(document: Document | None) -> str:
    return document["metadata"]["resourceVersion"] if document else ""


def _merged(old: Document, new: Document) -> Document:
    both = {key: _merged(old[key], new[key]) for key in old.keys() & new.keys() if isinstance(new[key], dict)}
    return {**old, **new, **both}


def _has(document: Document, request: web.Request) -> bool:
    wanted = [one for one in request.query.get("labelSelector", "").split(",") if "=" in one]
    labels = document["metadata"].get("labels") or {}
    return all(labels.get(one.partition("=")[0]) == one.partition("=")[2] for one in wanted)


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def _node(name: str) -> Document:
    size = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "2"}
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {},
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }


def _kubeconfig(url: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "t", "cluster": {"server": url}}],
        "users": [{"name": "t", "user": {"token": "a-token"}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "current-context": "t",
    }
