"""Makes a standing lab for manual work."""

from __future__ import annotations

import argparse
from pathlib import Path

from .builder import build_engine, stop_build_engine
from .images import build_product, build_registry
from .lab import Lab, names
from .packages import fetch, missing
from .paths import run_folder
from .processes import LabError


def main() -> None:
    """Run the command line."""
    asked = parse()
    lacking = missing()
    if lacking:
        raise SystemExit(lacking)
    try:
        asked.action(asked)
    except LabError as error:
        raise SystemExit(f"lab: {error}") from None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.machines", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, action: object, about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(action=action)
        return command

    make = add("up", up, "make a lab that outlives this command, unless it stands already")
    make.add_argument("--subnet", default="10.77.0", help="its network's first three numbers (%(default)s)")
    make.add_argument("--swarm", action="store_true", help="make a Swarm of it")
    make.add_argument("--gpus", type=int, default=0, help="fake GPUs per node")
    make.add_argument("--disk-mb", type=int, help="a size for each node's disk")
    for command in (make, add("down", down, "remove a lab")):
        command.add_argument("--name", default="dev", help="the lab's name (%(default)s)")
    add("status", status, "say what there is")
    add("images", images, "build all images that the tests use")
    add("build-engine", build, "start the build engine, which all labs share")
    add("stop-build-engine", lambda _: stop_build_engine(), "stop it; what it built stays")
    add("fetch", lambda _: print(fetch()), "fetch the Docker Engine")
    return parser.parse_args()


def up(asked: argparse.Namespace) -> None:
    if asked.name not in names() or not Lab.attach(asked.name).stands:
        lab = Lab(asked.name, asked.subnet, gpus=asked.gpus, disk_mb=asked.disk_mb, standing=True)
        lab.start()
        if asked.swarm:
            lab.form_swarm()
    _link_build_socket(asked.name)
    describe(asked.name)


def down(asked: argparse.Namespace) -> None:
    Lab.attach(asked.name).remove()


def status(asked: argparse.Namespace) -> None:
    for name in names():
        describe(name)
    if not names():
        print("no lab; `up` makes one")


def build(asked: argparse.Namespace) -> None:
    print(f"build engine: DOCKER_HOST=unix://{build_engine().socket}")


def images(asked: argparse.Namespace) -> None:
    for image in (*build_product(), build_registry()):
        print(image)


def describe(name: str) -> None:
    """Print how to use a lab."""
    lab = Lab.attach(name)
    print(f"lab {name}: this machine is {lab.root_address}, its outside registry {lab.registry.host}")
    for node in lab.nodes:
        state = "on" if node.machine.is_on and node.engine.runs else "off"
        print(f"  {node.name} {node.address} {state}: DOCKER_HOST=unix://{node.socket}")
    print(
        f"  from Python: Lab.attach({name!r}).nodes; end it: python -m tests.lab.machines down --name {name}"
    )


def _link_build_socket(name: str) -> None:
    link = run_folder() / name / "build.sock"
    link.unlink(missing_ok=True)
    link.symlink_to(Path("..", "build", "docker.sock"))


if __name__ == "__main__":
    main()
