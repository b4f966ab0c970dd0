"""A store that kills its service at a write, or whose database does not answer for a while."""

from minicluster_hub.store import StoreUnavailable

WRITES = (
    "apply", "note", "admit", "bind", "grow", "drop_tasks", "end_gang",
    "set_task_token", "task_started", "task_ended", "report",
)  # fmt: skip


class Killed(BaseException):
    """Stands for kill -9 at a call of the store: unsaved state is lost."""


class FaultyStore:
    """`kill_in`: number of writes until the service is killed.

    `away_for`: number of calls that fail, after `away_after` successful ones.
    """

    def __init__(self, store):
        self._store = store
        self.dead = self.killed = False
        self.kill_in = 0
        self.kill_before = False
        self.away_after = self.away_for = self.refused = 0

    def heal(self):
        self.kill_in = self.away_for = self.away_after = 0

    def revive(self):
        self.dead = False
        self.kill_in = 0

    def __getattr__(self, name):
        method = getattr(self._store, name)
        return self._counted(method, name in WRITES) if callable(method) else method

    def _counted(self, method, writes):
        def call(*args, **kwargs):
            if self.dead:
                raise Killed
            if self.away_after:
                self.away_after -= 1
            elif self.away_for:
                self.away_for -= 1
                self.refused += 1
                raise StoreUnavailable("the database does not answer")
            dies = writes and self._dies_now()
            if dies and self.kill_before:
                raise Killed
            answer = method(*args, **kwargs)
            if dies:
                raise Killed
            return answer

        return call

    def _dies_now(self):
        if not self.kill_in:
            return False
        self.kill_in -= 1
        self.dead = self.kill_in == 0
        self.killed |= self.dead
        return self.dead


__all__ = ["FaultyStore", "Killed", "StoreUnavailable"]
