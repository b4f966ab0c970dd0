"""Fakes around the service under test: a hub's API, and machines without processes."""

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from minicluster_hub.engines.base import Engine, ImageUnknown
from minicluster_hub.engines.capabilities import TaskImages
from minicluster_hub.jobs.records import NodeView, TaskView

READ, SUBMIT, ADMIN, POLICY, PLACE = (
    f"custom:minicluster:{what}" for what in ("read", "submit", "admin", "policy", "place")
)


def user_model(name, *scopes, kind="user"):
    return {"name": name, "kind": kind, "admin": False, "groups": [], "scopes": list(scopes)}


def people():
    """Return users by token. A hub restricts a user's custom scopes to that user."""
    own = {name: (f"{READ}!user={name}", f"{SUBMIT}!user={name}") for name in ("ada", "bob", "root")}
    models = {f"{name}-token": user_model(name, *scopes) for name, scopes in own.items()}
    models["root-token"] = user_model("root", READ, SUBMIT, ADMIN)
    models["policy-token"] = user_model("ada", *own["ada"], POLICY)
    models["reader-token"] = user_model("ada", f"{READ}!user=ada")
    models["submitter-token"] = user_model("ada", f"{SUBMIT}!user=ada")
    models["bobs-scopes-token"] = user_model("ada", *own["bob"])
    models["prometheus-token"] = user_model("prometheus", "read:metrics", kind="service")
    models["spawner-token"] = user_model("minicluster-spawner", PLACE, kind="service")
    models["placer-token"] = user_model("ada", f"{PLACE}!user=ada", *own["ada"])
    models["service-token"] = user_model("ada", READ, SUBMIT, kind="service")
    return models


class HubUser(RequestHandler):
    def get(self):
        hub = self.settings["hub"]
        hub.asked += 1
        if hub.down:
            return self.send_error(503)
        model = hub.models.get(self.request.headers["Authorization"].removeprefix("token "))
        if model is None:
            return self.send_error(403)
        return self.write(model)


class HubCodes(RequestHandler):
    """Exchanges a browser's login code for a token."""

    def post(self):
        code = self.get_body_argument("code")
        self.write({"access_token": f"{code.removeprefix('code-of-')}-token"})


class HubApi:
    """The two requests that a service sends to a hub, over real HTTP.

    It is a fake, so that tests can choose users' scopes and make the hub fail; tests/hub has a real hub.
    """

    def __init__(self):
        self.models = people()
        self.down = False
        self.asked = 0
        self.sockets = bind_sockets(0, "127.0.0.1")
        routes = [("/hub/api/user", HubUser), ("/hub/api/oauth2/token", HubCodes)]
        self.server = HTTPServer(Application(routes, hub=self, log_function=lambda handler: None))
        self.server.add_sockets(self.sockets)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.sockets[0].getsockname()[1]}/hub/api"


class MemoryEngine(Engine):
    """Machines without processes: tests simulate the agents."""

    def __init__(self):
        super().__init__()
        self.views = {}
        self.launches = {}
        self.kinds = ("cpu",)
        self.task_images = MemoryImages(self)
        self.images = ()
        self.tags = {}
        self.there = {}

    async def open(self):
        pass

    async def start(self, launch):
        self.launches[launch.task_id] = launch
        self.views[launch.task_id] = TaskView(launch.task_id, alive=True)

    async def end(self, task_id):
        self.views[task_id] = TaskView(task_id, alive=False, clean=True)
        self.on_change()

    def tasks(self):
        return self.views

    def forget(self, task_id):
        self.views.pop(task_id, None)

    def nodes(self):
        """Return three nodes that are up and two that are down, so that a job on five nodes waits."""
        seen = {"cpus": 8.0, "memory_bytes": 32_000_000_000}
        return tuple(NodeView(f"node-{i}", i <= 3, "127.0.0.1", self.kinds, **seen) for i in range(1, 6))

    async def close(self):
        pass


class MemoryImages(TaskImages):
    """The images that a test gives to its engine."""

    def __init__(self, engine):
        self.engine = engine

    def own(self):
        return self.engine.images

    def on_nodes(self):
        return self.engine.there

    async def digest(self, reference):
        try:
            return self.engine.tags[reference]
        except KeyError:
            raise ImageUnknown(f"no registry has {reference}") from None
