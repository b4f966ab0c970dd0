"""A Slurm for this folder's tests; without its programs they are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .daemons import SlurmDaemons, lacking

WHOLE = "it wants Slurm's daemons; `./test slurm` and `./test full` run it"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.full(WHOLE))


@pytest.fixture(scope="session")
def slurm(needs: Callable[[object, str], None]) -> Iterator[SlurmDaemons]:
    reason = lacking()
    needs(not reason, reason)
    daemons = SlurmDaemons()
    try:
        daemons.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(daemons.conf))
            yield daemons
    finally:
        daemons.stop()
