"""Four machines for all tests here: one for the platform, and three for jobs that lose a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ..cluster import Images, LabCluster
from ..jobs import Jobs, administrator, wait_idle
from ..machines import Lab
from ..remains import check_nothing_of_jobs_left

KEEP_WARM_S = 5


class Four:
    """The cluster, used by one test after the other. If a test leaves it broken, the next gets a new one."""

    def __init__(self, images: tuple[str, ...], say: Callable[[str], None]) -> None:
        self._images = images
        self._say = say
        self._lab = ExitStack()
        self._cluster: LabCluster | None = None

    @contextmanager
    def lent(self) -> Iterator[Jobs]:
        """Yield an administrator's jobs on four idle nodes; afterwards, wait until these are idle again."""
        try:
            cluster = self._cluster or self._make()
            with administrator(cluster) as jobs:
                wait_idle(jobs)
                yield jobs
                wait_idle(jobs)
            check_nothing_of_jobs_left(cluster)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        self._cluster = None
        self._lab.close()

    def _make(self) -> LabCluster:
        self._say("four machines, and a cluster on them")
        lab = self._lab.enter_context(Lab.fresh(gpus=(2, 2, 2, 2), images=self._images))
        cluster = LabCluster(lab, Images(*(lab.load(image) for image in self._images)))
        cluster.up(f"--service-option=--MiniclusterHub.keep_warm_s={KEEP_WARM_S}")
        cluster.join()
        self._cluster = cluster
        return cluster


@pytest.fixture(scope="package")
def four(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[Four]:
    made = Four(images, say)
    yield made
    made.remove()


@pytest.fixture
def jobs(four: Four) -> Iterator[Jobs]:
    with four.lent() as lent:
        yield lent
