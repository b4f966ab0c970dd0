"""Every kernel of this environment knows %%distribute and mc from its start; a user's own lists stay."""

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

c.InteractiveShellApp.extensions.append("minicluster")
# It costs nothing: the extension has imported it, and what it has is imported when it is used.
c.InteractiveShellApp.exec_lines.append("import minicluster as mc")
