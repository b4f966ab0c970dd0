"""The hub's configuration where the lab gives none of its own (`up --config FILE`)."""

from minicluster_hub.configure import configure

configure(get_config())  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
