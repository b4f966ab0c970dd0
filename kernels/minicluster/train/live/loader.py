"""A loader that divides the data among the participating ranks: each sample of an epoch is seen once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from minicluster.train.live.session import LiveSession
from minicluster.train.loaders import EpochOrder, sampler_of


class LiveLoader(DataLoader[Any]):
    """Yields this rank's share of the epoch, step by step.

    If a step did not count, the remaining ranks divide and repeat its samples. A joining rank gets `epoch`
    and `consumed` with the state; past epochs are empty for it.
    """

    def __init__(self, session: LiveSession, loader: DataLoader[Any], options: dict[str, Any]) -> None:
        self._drawn = EpochOrder(sampler_of(loader))
        super().__init__(loader.dataset, shuffle=False, **options)
        self._session = session
        self._options = {
            name: value for name, value in options.items() if name not in ("batch_size", "drop_last")
        }
        self._iterations = 0
        self._epoch = 0
        self._consumed = 0
        self._position = 0
        self._order: tuple[int, list[int]] = (-1, [])
        session.after_commit(self._committed)
        session.keep("loader", self.load_state_dict, self.state_dict)

    @property
    def epoch(self) -> int:
        return self._epoch

    def __reduce__(self) -> tuple[Any, ...]:
        # In the notebook, which has no ranks, it becomes a plain loader again.
        return _plain, (self.dataset, self.batch_size, self._drawn.sampler)

    def state_dict(self) -> dict[str, Any]:
        # The keys are those of SharedLoader, so each loader can use the other's snapshots.
        return {"epoch": self._epoch, "consumed": self._consumed, "within": self._consumed > 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._consumed = state["epoch"], state["consumed"]
        self._position = self._consumed
        if not self._iterations:  # Called by mc.resume(): the loop starts at `epoch`.
            self._iterations = self._epoch

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        iteration = self._iterations
        self._iterations += 1
        if iteration > self._epoch:  # The previous loop was left early.
            self._turn_to(iteration)
        return self._steps(iteration)

    def __len__(self) -> int:
        batch = (self.batch_size or 1) * max(1, len(self._session.members))
        size = len(self._indexes())
        return size // batch if self.drop_last else -(-size // batch)

    def _steps(self, epoch: int) -> Iterator[Any]:
        ahead = _Ahead(self)
        while True:
            self._session.begin()
            if self._epoch != epoch:
                return
            take = self.take_at(self._position)
            if take is None:
                self._turn_to(epoch + 1)
                return
            batch = ahead.get(self._position)
            self._position += take.all
            yield batch

    def take_at(self, position: int) -> Take | None:
        """Return this rank's samples at a position of the epoch, given the participating ranks."""
        members = self._session.members
        return next_take(
            self._indexes(), position, self._session.place, len(members), self.batch_size or 1, self.drop_last
        )

    def ahead_from(self, position: int) -> Iterator[Any]:
        """Return batches from a position on, prefetched by the user's number of worker processes."""

        def takes() -> Iterator[tuple[int, ...]]:
            at = position
            while take := self.take_at(at):
                at += take.all
                yield take.samples

        if self.batch_size is None:
            flat = itertools.chain.from_iterable(takes())
            return iter(DataLoader(self.dataset, batch_size=None, sampler=_Once(flat), **self._options))
        batches = (list(samples) for samples in takes())
        return iter(DataLoader(self.dataset, batch_sampler=_Once(batches), **self._options))

    def _indexes(self) -> list[int]:
        """Return the epoch's order from its sampler; it is the same on all ranks."""
        if self._order[0] != self._epoch:
            self._order = self._epoch, self._drawn.of(self._epoch)
        return self._order[1]

    def _turn_to(self, epoch: int) -> None:
        self._epoch, self._consumed, self._position = epoch, 0, 0

    def _committed(self, taken: bool) -> None:
        if taken:
            self._consumed = self._position
        else:
            self._position = self._consumed


def _plain(dataset: Any, batch_size: int | None, sampler: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler)


class _Once:
    """A sampler for one pass."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items


class _Ahead:
    """Prefetched batches in order, valid while ranks and position are as expected."""

    def __init__(self, loader: LiveLoader) -> None:
        self._loader = loader
        self._seen: tuple[Any, ...] = ()
        self._batches: Iterator[Any] = itertools.repeat(None)

    def get(self, position: int) -> Any:
        members = self._loader._session.members
        if self._seen != (position, members):
            self._batches = self._loader.ahead_from(position)
        take = self._loader.take_at(position)
        self._seen = (position + (take.all if take else 0), members)
        return next(self._batches)


# Selects a rank's samples for its next step, for any number of ranks; has no side effects.


@dataclass(frozen=True)
class Take:
    """samples: this rank's samples. all: number of samples that all ranks take together."""

    samples: tuple[int, ...]
    all: int


def next_take(
    order: Sequence[int], consumed: int, place: int, count: int, batch: int, drop_last: bool
) -> Take | None:
    """Return this rank's share of the next step; None at the epoch's end.

    Each sample is taken once. The last step divides the rest evenly, since all ranks have the same weight.
    For a remainder, up to count - 1 samples from the start of the epoch are repeated.
    """
    left = len(order) - consumed
    if left <= 0 or (drop_last and left < count * batch):
        return None
    each = min(batch, -(-left // count))
    first = consumed + place * each
    samples = tuple(order[index % len(order)] for index in range(first, first + each))
    return Take(samples, min(left, each * count))
