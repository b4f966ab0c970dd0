"""`python -m minicluster_hub.launch`, called by `./run` when everything is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from minicluster_hub.launch import datafolder
from minicluster_hub.launch.errors import LaunchError
from minicluster_hub.launch.messages import complain, echo, new_password, removed
from minicluster_hub.launch.options import Options, parse
from minicluster_hub.launch.serve import demo, serve
from minicluster_hub.login.accounts_file import PasswordError, PasswordFile, check_user_name


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for; return the exit code."""
    options = parse(arguments)
    try:
        if options.add_user or options.reset_password or options.remove_user:
            return change_user(options)
        return demo(options) if options.demo else serve(options)
    except (LaunchError, PasswordError) as error:
        complain(str(error))
        return 1


def change_user(options: Options) -> int:
    """Add or remove a user, or set a new password; a running hub reads the change at the next login."""
    datafolder.make(options.data_dir)
    users = PasswordFile(options.data_dir / "passwords.json")
    if options.remove_user:
        users.remove(options.remove_user)
        echo(removed(check_user_name(options.remove_user)))
        return 0
    if options.add_user:
        name, password = options.add_user, users.add(options.add_user)
    else:
        name = options.reset_password or ""
        password = users.reset(name)
    echo(new_password(check_user_name(name), password))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
