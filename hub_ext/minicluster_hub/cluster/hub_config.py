"""The hub's configuration, unless the lab gives another (`up --config FILE`)."""

from minicluster_hub.configure import configure

configure(get_config())  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
