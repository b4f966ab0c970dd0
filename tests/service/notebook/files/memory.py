"""The peak memory of a process, as counted by the Linux kernel."""

from pathlib import Path

from ....processes import runs


class Peak:
    """Measures a process's peak memory from now on, above its present peak."""

    def __init__(self, pid):
        self.folder = Path(f"/proc/{pid}")
        self.name = (self.folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        (self.folder / "clear_refs").write_text("5")
        self.before = self._peak()

    def more_bytes(self):
        return self._peak() - self.before

    def _peak(self):
        for line in (self.folder / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no peak is known of {self.name}")


def agents_of(cluster):
    """Return the process ids of the agents of warm gangs."""
    found = [process.pid for process in cluster.tasks() if runs(process, "minicluster.runtime.agent")]
    assert found
    return found
