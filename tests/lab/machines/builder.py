"""The build engine: it shares the root namespace's network, so that builds reach package registries."""

from __future__ import annotations

from .baseimage import base_image_tar
from .engine import Engine
from .machine import Machine
from .packages import fetch, locked
from .paths import LAB_NETWORK, cache_folder, run_folder

BASE_IMAGE = "minilab/base"


def build_engine() -> Engine:
    """Return the running build engine, with the base image. It serves all labs and keeps running."""
    fetch()
    engine = _build_engine()
    with locked("build"):
        engine.machine.power_on()
        engine.start()
        _import_base(engine)
    return engine


def build_engine_runs() -> bool:
    return _build_engine().runs


def stop_build_engine() -> None:
    """Stop the build engine; its layers remain in the cache."""
    engine = _build_engine()
    if engine.machine.is_on and engine.runs:
        engine.stop()
    engine.machine.power_off()
    engine.forget()


def _build_engine() -> Engine:
    machine = Machine(run_folder() / "build", "build", "minilab/build", has_network=False)
    options = ["--bridge=none", "--iptables=false", "--ip6tables=false", f"--insecure-registry={LAB_NETWORK}"]
    return Engine(machine, cache_folder() / "build", options)


def _import_base(engine: Engine) -> None:
    with engine.client() as client:
        is_there = client.images(BASE_IMAGE, quiet=True)
    if not is_there:
        engine.docker("import", "--change", 'CMD ["bash"]', base_image_tar(), f"{BASE_IMAGE}:latest")
