"""Every kernel of this environment knows %%distribute without %load_ext; a user's own list stays."""

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

c.InteractiveShellApp.extensions.append("minicluster")
