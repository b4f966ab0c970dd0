"""The two ways to run a hub: until an end signal comes, and for the demo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from minicluster_hub.launch import datafolder, ports
from minicluster_hub.launch.errors import DemoFailed, Stopped
from minicluster_hub.launch.hubprocess import HubProcess, end_left_over
from minicluster_hub.launch.messages import echo, welcome
from minicluster_hub.launch.options import Options, tree
from minicluster_hub.launch.signals import Signals
from minicluster_hub.login.accounts_file import FIRST_USER, PasswordFile
from minicluster_hub.settings import Settings


def serve(options: Options) -> int:
    """Run the hub until an end signal comes; return the exit code."""
    with prepared(options, options.port or 8000) as hub, Signals() as signals:
        try:
            hub.start()
            hub.wait_ready(signals)
            echo(welcome(hub.settings, _passwords(options).add_first()))
            hub.wait_end(signals)
        except Stopped:
            echo("\nEnding the hub, the notebook servers and all jobs ...")
        finally:
            hub.stop()
    echo("Ended.")
    return 0


def demo(options: Options) -> int:
    """Run the demo; return 0 only if every step of it succeeds."""
    from minicluster_hub.launch import demo as steps

    if not options.own_data:
        options = replace(options, data_dir=steps.temporary_data())
    executed = options.data_dir / "quickstart-executed.ipynb"
    with prepared(options, options.port or ports.choose_public(options.host)) as hub:
        echo(f"Demo on {hub.settings.url}, data in {options.data_dir}")
        try:
            _demo(hub, options, executed)
        except Stopped:
            raise DemoFailed("Stopped by a signal.") from None
        finally:
            with Signals():
                hub.stop()
    if not options.own_data:
        steps.remove_others(options.data_dir, executed)
    echo(f"The executed notebook: {executed}")
    return 0


def _demo(hub: HubProcess, options: Options, executed: Path) -> None:
    from minicluster_hub.launch import demo as steps

    watch = steps.Stopwatch()
    with Signals() as signals:
        hub.start()
        hub.wait_ready(signals)
    watch.lap("hub")
    users = _passwords(options)
    password = users.add_first() or users.reset(FIRST_USER)
    steps.run_visit(hub.settings.url, FIRST_USER, password, executed)


@contextmanager
def prepared(options: Options, port: int) -> Iterator[HubProcess]:
    """Lock the data folder, check it and the port, and yield a hub that is not started yet."""
    datafolder.make(options.data_dir)
    holder = f"process {os.getpid()} (http://{options.host}:{port})"
    with datafolder.locked(options.data_dir, holder):
        datafolder.check_databases(options.data_dir)
        _passwords(options).users()
        end_left_over(options.data_dir)
        ports.check_public(options.host, port)
        loopback = ports.choose(options.data_dir / "hub" / "ports.json")
        where = options.data_dir, options.host, port, options.nodes, loopback
        settings = Settings(*where, domain=options.domain, policies_dir=options.policies)
        yield HubProcess(settings, tree() / "jupyterhub_config.py")


def _passwords(options: Options) -> PasswordFile:
    return PasswordFile(options.data_dir / "passwords.json")
