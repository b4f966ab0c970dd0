"""Times cells that do nothing: interactive_cells.py ipyparallel|nbdistributed RANKS CELLS.

Prints a line `took SECONDS` for each.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

RunCell = Callable[[], None]


@contextmanager
def ipyparallel(ranks: int) -> Iterator[RunCell]:
    import ipyparallel

    with ipyparallel.Cluster(n=ranks) as client:
        engines = client[:]
        yield lambda: engines.execute("pass", block=True)


@contextmanager
def nbdistributed(ranks: int) -> Iterator[RunCell]:
    # It starts its workers as "python".
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "nbdistributed")
    shell.run_line_magic("dist_init", f"-n {ranks}")
    try:
        # It does not wait until its workers have imported torch, and the first cell would time out.
        time.sleep(15)
        with redirected() as printed:
            shell.run_cell_magic("distributed", "", "print('here')")
        assert printed.getvalue().count("here") == ranks, printed.getvalue()
        yield lambda: shell.run_cell_magic("distributed", "", "pass")
    finally:
        shell.run_line_magic("dist_shutdown", "")


def redirected() -> contextlib.redirect_stdout[io.StringIO]:
    """What a cell prints is no part of its time."""
    return contextlib.redirect_stdout(io.StringIO())


PEERS = {"ipyparallel": ipyparallel, "nbdistributed": nbdistributed}


def main() -> None:
    name, ranks, cells = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with PEERS[name](ranks) as run_cell:
        for _ in range(5):
            run_cell()
        times = []
        for _ in range(cells):
            began = time.perf_counter()
            with redirected():
                run_cell()
            times.append(time.perf_counter() - began)
    print("\n" + "\n".join(f"took {seconds:.6f}" for seconds in times))


if __name__ == "__main__":
    main()
