"""The hub's configuration: edit it for your lab. Lines after `configure` win over what it sets.

`./run` reads this file; so does `jupyterhub -f jupyterhub_config.py`.
"""

from minicluster_hub.configure import configure

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

configure(c)

# Another login, for example the users of this machine, or your university's:
# c.JupyterHub.authenticator_class = "pam"
# c.Authenticator.allowed_users = {"ada", "grace"}

# Who sees and stops everybody's jobs (our own login puts its admins here by itself):
# c.JupyterHub.load_groups = {"minicluster-admins": {"users": ["ada"]}}

# Notebook servers hold no GPU, jobs lease them. To let notebooks see all GPUs as well:
# c.ProcessSpawner.hide_gpus = False

# PostgreSQL instead of SQLite for the job service:
# configure(c, service_args=("--db-url-file=/etc/minicluster/db-url",))
