"""`%%distribute` and `%distribute` in IPython: the lines are parsed here, the work is done elsewhere.

Whatever is not needed to load the extension is imported when a magic is first used.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from traitlets import Bool, Int

from .options import Command, parse_cell_line, parse_command_line

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .client import Service
    from .results import Result
    from .runs import MakeScreen, Notebook

_LOG_BYTES = 256 * 1024


@magics_class
class Distribute(Magics):
    """Run cells on all machines of the cluster. Configure as `c.Distribute.<name>`."""

    send_limit_bytes = Int(
        1 << 30,
        min=1,
        help="Bytes of names that may travel with a cell. More lets larger datasets travel, each "
        "time anew and to every rank; reading them in the cell is mostly better.",
    ).tag(config=True)
    result_limit_bytes = Int(
        1 << 30, min=1, help="Bytes of names that may come back from rank 0; what is more stays there."
    ).tag(config=True)
    modules_limit_bytes = Int(
        10_000_000, min=1, help="Bytes of source of the modules beside the notebook that travel with a cell."
    ).tag(config=True)
    tail_lines = Int(
        200, min=1, max=5000, help="Lines of each rank that a panel shows; more cost the browser more."
    ).tag(config=True)
    plain = Bool(False, help="Show text instead of panels, as in a terminal.").tag(config=True)

    def __init__(self, shell: InteractiveShell, **options: Any) -> None:
        super().__init__(shell, **options)
        self._shell = shell
        self._service: Service | None = None
        self._neighbour_told = False

    @cell_magic("distribute")
    def run_cell(self, line: str, cell: str) -> Any:
        """Run this cell on all ranks: `%%distribute --nodes 3`, then plain PyTorch."""
        from .results import Result
        from .runs import run_cell

        options = parse_cell_line(line)
        self._tell_neighbour()
        # The magic's own line stays as a comment, so that line numbers are those of the whole cell.
        source = f"# %%distribute {line}\n{cell}"
        filename = f"Cell In[{self._shell.displayhook.prompt_count}]"
        outcome = run_cell(source, filename, options, self._notebook(options.plain))
        return self._keep(outcome) if isinstance(outcome, Result) else outcome

    @line_magic("distribute")
    def run_command(self, line: str) -> Any:
        """Look after jobs: %distribute status, nodes, or why, logs, attach, stop, result, snapshots ID."""
        command = parse_command_line(line)
        if command.verb == "status":
            from .tables import job_table

            return job_table(self._connected().jobs())
        if command.verb == "nodes":
            from .tables import node_table

            return node_table(self._connected().nodes().nodes)
        return self._on_job(command, command.job_id or 0)

    def _on_job(self, command: Command, job_id: int) -> Any:
        from .runs import attach, fetch_result
        from .tables import job_table, snapshot_table

        service = self._connected()
        if command.verb == "stop":
            return job_table([service.stop(job_id)])
        if command.verb == "why":
            from .why import Why

            return Why(service.why(job_id))
        if command.verb == "logs":
            return self._print_log(job_id, command.rank)
        if command.verb == "snapshots":
            return snapshot_table(service.snapshots(job_id), job_id, service.browser_path())
        if command.verb == "attach":
            return self._keep(attach(job_id, self._notebook(False)))
        return self._keep(fetch_result(service.job(job_id), self._notebook(False)))

    def _print_log(self, job_id: int, rank: int) -> None:
        from .runs import log_path

        service = self._connected()
        text, left_out_bytes = service.log(job_id, rank, _LOG_BYTES)
        if left_out_bytes:
            url = service.url + log_path(job_id, rank)
            print(f"… the first {left_out_bytes} bytes are left out here; all of it: {url}")  # noqa: T201
        print(text, end="" if text.endswith("\n") else "\n")  # noqa: T201

    def _keep(self, result: Result) -> Any:
        """Put a result's names into the notebook and return its value, for Out[n]."""
        self._shell.push(dict(result.names))
        if summary := result.summary():
            print(summary)  # noqa: T201
        return result.value

    def _connected(self) -> Service:
        from .client import Service

        if self._service is None:
            self._service = Service.from_environment()
        return self._service

    def _notebook(self, plain: bool) -> Notebook:
        from .capture import Limits
        from .runs import Notebook

        hidden = self._shell.user_ns_hidden
        space = self._shell.user_ns
        return Notebook(
            service=self._connected(),
            namespace=space,
            hidden=lambda name: name in hidden and hidden[name] is space.get(name),
            limits=Limits(self.send_limit_bytes, self.result_limit_bytes, self.modules_limit_bytes),
            tail_lines=self.tail_lines,
            make_screen=self._screens(plain or self.plain),
        )

    def _screens(self, plain: bool) -> MakeScreen:
        # Only a kernel has a front end that may show widgets; a terminal's shell has no kernel.
        in_kernel = getattr(self._shell, "kernel", None) is not None
        if plain or not in_kernel or importlib.util.find_spec("anywidget") is None:
            from .plain import PlainScreen

            return lambda ask_stop: PlainScreen()
        from .panel import PanelScreen

        return PanelScreen

    def _tell_neighbour(self) -> None:
        cell_magics = self._shell.magics_manager.magics["cell"]
        if "distributed" in cell_magics and not self._neighbour_told:
            self._neighbour_told = True
            print(  # noqa: T201
                "Note: nbdistributed is loaded as well. %%distribute (this one) is Minicluster's and runs "
                "on the cluster; %%distributed, with a d at its end, is nbdistributed's."
            )


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, with the shell's configuration."""
    shell.register_magics(Distribute(shell, parent=shell))
