"""Configuration of the hub that test_spawner.py runs in a container: the spawner only."""

import json
import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

told = json.loads(os.environ["SPAWNER_TEST"])
data, service_port = Path("/srv/minicluster"), 8082
names = ("read", "submit", "admin", "place")
scopes = {name: f"custom:minicluster:{name}" for name in names}
token_file = data / "spawner_token"
token_file.write_text(told["spawner_token"])

c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.allow_all = True
c.JupyterHub.bind_url = "http://0.0.0.0:8000"
c.JupyterHub.hub_bind_url = "http://0.0.0.0:8081"
scheme = "https" if told["internal_ssl"] else "http"
c.JupyterHub.hub_connect_url = f"{scheme}://hub:8081"
c.JupyterHub.trusted_alt_names = ["DNS:hub"]
c.JupyterHub.db_url = f"sqlite:///{data}/hub.sqlite"
c.JupyterHub.cookie_secret_file = str(data / "cookie_secret")
proxy_pid_file = data / "proxy.pid"
# Left by a hub that was killed with its proxy: another process may have this id by now.
proxy_pid_file.unlink(missing_ok=True)
c.ConfigurableHTTPProxy.pid_file = str(proxy_pid_file)
c.JupyterHub.cleanup_servers = False
c.JupyterHub.allow_named_servers = True
c.JupyterHub.internal_ssl = told["internal_ssl"]
c.JupyterHub.internal_certs_location = str(data / "internal-ssl")
c.JupyterHub.custom_scopes = {scope: {"description": name} for name, scope in scopes.items()}
c.JupyterHub.services = [
    {
        "name": "minicluster",
        "url": f"http://127.0.0.1:{service_port}",
        "api_token": told["service_token"],
        "command": [
            sys.executable,
            "-P",
            "-m",
            "minicluster_hub",
            f"--data-dir={data}/service",
            "--engine=swarm",
            f"--SwarmEngine.image={told['image']}",
            "--MiniclusterHub.server_gpus=2",
            "--MiniclusterHub.gpu_idle_warn_s=1",
            "--MiniclusterHub.gpu_idle_reclaim_s=2",
        ],
    },
    {"name": "spawner", "api_token": told["spawner_token"], "display": False},
    {"name": "test", "api_token": told["test_token"], "display": False},
]
c.JupyterHub.load_roles = [
    {"name": "spawner", "scopes": [scopes["place"]], "services": ["spawner"]},
    {
        "name": "test",
        "scopes": ["admin:users", "admin:servers", "access:servers", scopes["place"]],
        "services": ["test"],
    },
]
c.JupyterHub.spawner_class = "minicluster_spawner.swarm.MiniclusterSpawner"
c.MiniclusterSpawner.service_url = f"http://127.0.0.1:{service_port}/services/minicluster/"
c.MiniclusterSpawner.ledger_token_file = str(token_file)
c.MiniclusterSpawner.network_name = told["network"]
c.MiniclusterSpawner.images = {"CPU": told["image"], "gone": told["image"].rpartition(":")[0] + "-gone:1"}
c.MiniclusterSpawner.cpu_limit = 1
c.MiniclusterSpawner.max_cpus = 4
c.MiniclusterSpawner.mem_limit = "1G"
c.MiniclusterSpawner.max_memory = "2G"
c.MiniclusterSpawner.max_gpus = 2
c.MiniclusterSpawner.poll_interval = 2
c.MiniclusterSpawner.environment = {"LD_PRELOAD": "/evil.so", "GREETING": "hello"}
c.MiniclusterSpawner.volumes = {"lab-data": "/data", **told["volumes"]}
