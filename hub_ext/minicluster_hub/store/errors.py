"""What the store raises. Its callers see these and never an error of the database's driver."""

from __future__ import annotations

from collections.abc import Iterable


class StoreError(Exception):
    """Base of the store's errors."""


class StoreBroken(StoreError):
    """The database cannot be used at all; the message is one sentence for who starts the service."""


class StoreUnavailable(StoreError):
    """The database did not take this call (disk full, server gone); a later try may succeed."""


class StoreFull(StoreUnavailable):
    """The database has no room left on its disk."""


class NotLeading(StoreError):
    """Another job service acts, not this one. Nothing was changed."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"the job service at {holder} does not lead; another one does")


class JobUnknown(StoreError):
    """A job's id that has no row: a defect in the caller, since jobs are never deleted."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"there is no job {job_id} in the store")


class SlotTaken(StoreError):
    """A slot of the placement is held already. Nothing was changed; decide anew."""

    def __init__(self, refused: str, slots: Iterable[str]) -> None:
        held = ", ".join(slots) or "one of its slots was asked for twice or was just taken"
        super().__init__(f"{refused}: {held}")


class HomeMoved(StoreError):
    """A user's home got another node than the one that a place was chosen by. Decide anew."""

    def __init__(self, owner: str, node: str) -> None:
        super().__init__(f"the home of {owner} is on {node}")


class ImageNameTaken(StoreError):
    """Another owner's image goes by this name. Nothing was changed."""

    def __init__(self, name: str, owner: str) -> None:
        super().__init__(f"the image {name} is {f'one of {owner}' if owner else 'one of the cluster itself'}")
        self.name = name


class GangTaken(StoreError):
    """A gang that was thought warm is not free for this job. Nothing was changed; decide anew."""

    def __init__(self, job_id: int, gang_id: int, why: str) -> None:
        super().__init__(f"job {job_id} cannot have gang {gang_id}: {why}")
