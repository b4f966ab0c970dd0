"""The magics `%%distribute`, `%%sweep`, `%distribute` and `%serve` in IPython.

Loading the extension imports only what it needs; the rest is imported when a magic is first used.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleMatcherResult, context_matcher
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from traitlets import Bool, Int

from minicluster.commands import commands_help, parse_command_line
from minicluster.options import OptionWrong, cell_parser, parse_cell_line
from minicluster.parsing.parser import HelpRequested
from minicluster.serving.commands import help_text, parse
from minicluster.serving.options import ServeOptions

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from minicluster.cell_run import JobIdentity, MakeScreen, RunContext
    from minicluster.changes.applying import SentObjects
    from minicluster.client.client import JobServiceClient
    from minicluster.dry_run.report import DryRun
    from minicluster.options import CellOptions
    from minicluster.parsing.completion import Completer
    from minicluster.results.results import Result
    from minicluster.sessions.session import Session
    from minicluster.wire import Job


@magics_class
class Distribute(Magics):
    """Run cells on all machines of the cluster. Configure as `c.Distribute.<name>`."""

    send_limit_bytes = Int(
        1 << 30,
        min=1,
        help="Limit in bytes for the names that are sent with a cell to every rank. Read large data sets in "
        "the cell instead.",
    ).tag(config=True)
    result_limit_bytes = Int(
        1 << 30,
        min=1,
        help="Limit in bytes for the names that come back from rank 0. Names above it stay there.",
    ).tag(config=True)
    modules_limit_bytes = Int(
        10_000_000,
        min=1,
        help="Limit in bytes for the modules beside the notebook that are sent with a cell.",
    ).tag(config=True)
    bundle_limit_bytes = Int(
        50_000_000,
        min=1,
        help="Limit in bytes for the files of --with. They are sent with each cell; a data set is sent once.",
    ).tag(config=True)
    tail_lines = Int(
        200,
        min=1,
        max=5000,
        help="How many lines of each rank a panel shows. More lines slow the browser down.",
    ).tag(config=True)
    plain = Bool(False, help="Show text instead of panels, as in a terminal.").tag(config=True)

    def __init__(self, shell: InteractiveShell, **options: Any) -> None:
        super().__init__(shell, **options)
        self._shell = shell
        self._service: JobServiceClient | None = None
        self._completer: Completer | None = None
        self._mentioned = False
        self._line = ""
        self._sent: dict[JobIdentity, SentObjects] = {}
        self._session: Session | None = None
        self._left_on_ranks: dict[str, str] = {}

    @cell_magic("distribute")
    def run_cell(self, line: str, cell: str) -> Any:
        """Run this cell on all ranks: `%%distribute --nodes 3`, then plain PyTorch."""
        from minicluster.cell_run import run_cell
        from minicluster.origin import cell_name
        from minicluster.results.results import Result

        try:
            options = parse_cell_line(line)
        except HelpRequested as asked:
            return print(asked)  # noqa: T201
        self._line = line.strip()
        self._mention_nbdistributed()
        # The magic's own line becomes a comment, so that line numbers are those of the whole cell.
        source = f"# %%distribute {line}\n{cell}"
        number = self._shell.displayhook.prompt_count
        filename = f"Cell In[{number}]"
        options = replace(options, name=options.name or cell_name(number, self._shell.user_ns))
        if options.dry_run and self._session is None:
            return self._dry_run(source, filename, options)
        context = self.run_context(options.plain)
        if self._session is not None:
            made = self._session.run(source, filename, options, context)
            return None if made is None else self.apply_result(made)
        outcome = run_cell(source, filename, options, context)
        return self.apply_result(outcome) if isinstance(outcome, Result) else outcome

    def _dry_run(self, source: str, filename: str, options: CellOptions) -> DryRun:
        """Run a cell's first step on virtual ranks; without a cluster, too."""
        from minicluster.cell_run import capture_cell
        from minicluster.dry_run.run import dry_run

        context = self.run_context(options.plain, self.service_or_none())
        # Nothing is pulled: what --pull leaves out does not stay on any rank.
        captured, _ = capture_cell(source, filename, replace(options, pull=None), context)
        return dry_run(captured, options, context)

    @cell_magic("sweep")
    def run_sweep(self, line: str, cell: str) -> Any:
        """Search for good parameters: `%%sweep --metric val_loss`, with mc.suggest in the cell."""
        from minicluster.origin import cell_name
        from minicluster.sweeps.options import parse_sweep_line
        from minicluster.sweeps.running import run_sweep

        try:
            options = parse_sweep_line(line)
        except HelpRequested as asked:
            return print(asked)  # noqa: T201
        self._line = line.strip()
        number = self._shell.displayhook.prompt_count
        name = options.cell.name or cell_name(number, self._shell.user_ns)
        options = replace(options, cell=replace(options.cell, name=name))
        plain = self._is_plain(options.cell.plain)
        context = self.run_context(options.cell.plain)
        sweep = run_sweep(f"# %%sweep {line}\n{cell}", f"Cell In[{number}]", options, context, plain)
        self._shell.push({"sweep": sweep})
        return sweep if options.cell.detach else None

    @line_magic("distribute")
    def run_command(self, line: str) -> Any:
        """Manage jobs: `%distribute status`; an unknown word lists all commands."""
        try:
            command, values = parse_command_line(line)
        except HelpRequested as asked:
            return print(asked)  # noqa: T201
        self._line = line.strip().removeprefix(command.verb).strip()
        return command.run(self, **values)

    @line_magic("serve")
    def serve(self, line: str) -> Any:
        """Let a model answer requests: `%serve model --name digits --example x`; or manage those that do."""
        from minicluster.serving.submission import serve

        try:
            asked = parse(line)
        except HelpRequested as help_asked:
            return print(help_asked)  # noqa: T201
        self._line = line.strip()
        if isinstance(asked, ServeOptions):
            filename = f"Cell In[{self._shell.displayhook.prompt_count}]"
            return serve(asked, filename, self.run_context(True))
        verb, values = asked
        return verb.run(self, **values)

    # What `%%distribute?`, `%distribute?` and `%serve?` show.
    run_cell.__doc__ = cell_parser().format_help()
    run_command.__doc__ = commands_help()
    serve.__doc__ = help_text()

    def start_session(self, options: CellOptions) -> Session:
        """Start ranks on which the cells after this one run."""
        from minicluster.sessions.session import Session, check_options_of_up

        check_options_of_up(options)
        if self._session is not None:
            ended = self.end_session()
            print(f"Session {ended.id} ends, with what its ranks had.")  # noqa: T201
        session = Session.start(options, self.run_context(options.plain))
        self._use(session)
        return session

    def _use(self, session: Session) -> None:
        if self._session is None:
            self._shell.events.register("post_run_cell", self._cell_ran)
        self._session = session

    def _cell_ran(self, result: ExecutionResult) -> None:
        """Tell the session what a cell of the notebook assigned."""
        from minicluster.capture.cell_flow import names_of

        if self._session is not None and result.info is not None:
            # A cell that is no Python failed, and its error was shown.
            with suppress(SyntaxError):
                source = self._shell.transform_cell(result.info.raw_cell)
                self._session.assigned_here(names_of(ast.parse(source)).assigned)

    def attach_session(self, job_id: int) -> bool:
        """Run the cells after this one in a session that is there; return whether the job is one."""
        from minicluster.sessions.session import Session

        cell = self.service().newest_cell(job_id)
        if cell is None:
            return False
        self._use(Session.attach(self.service(), self.service().job(job_id), cell, self.run_context()))
        return True

    def show_ranks_names(self) -> None:
        """Print what the session's ranks have. Raises OptionWrong without a session."""
        self._open_session().whos(self.run_context())

    def end_session(self) -> Job:
        """End the session. Raises OptionWrong if there is none."""
        session, self._session = self._open_session(), None
        self._shell.events.unregister("post_run_cell", self._cell_ran)
        return session.stop()

    def pull_from_session(self, names: tuple[str, ...]) -> None:
        """Bring values from the session's ranks into the notebook. Raises OptionWrong without a session."""
        from minicluster.options import CellOptions

        made = self._open_session().pull(names, CellOptions(), self.run_context())
        if made is not None:
            self.apply_result(made)

    def _open_session(self) -> Session:
        if self._session is None:
            raise OptionWrong("This notebook has no session.", "%distribute up --nodes 3 starts one.")
        return self._session

    def attach_sweep(self, sweep_id: int) -> Any:
        """Show a sweep until it is over; it is then in the notebook as `sweep`."""
        from minicluster.sweeps.running import attach_sweep

        sweep = attach_sweep(sweep_id, self.run_context(), self._is_plain(False))
        self._shell.push({"sweep": sweep})

    def names(self) -> Iterable[str]:
        """Return the notebook's names that a line may use."""
        return (name for name in self._shell.user_ns if not name.startswith("_"))

    @property
    def namespace(self) -> dict[str, Any]:
        """The notebook's variables."""
        return self._shell.user_ns

    def insert_cell(self, text: str) -> None:
        """Insert a cell below the one that runs; a terminal offers it as its next line."""
        self._shell.set_next_input(text)

    @context_matcher()
    def complete(self, context: CompletionContext) -> SimpleMatcherResult:
        """Return what Tab offers on a line of these magics."""
        line = re.match(r"(%%distribute|%%sweep|%distribute|%serve)\s(.*)", context.text_until_cursor)
        if line is None or (line[1].startswith("%%") and context.cursor_line):
            return {"completions": []}
        if self._completer is None:
            from minicluster.parsing.completion import Completer

            self._completer = Completer(self)
        return self._completer.complete(line[1], line[2])

    def apply_result(self, result: Result) -> Any:
        """Put a result's names and changes into the notebook; return its value, for Out[n]."""
        result.put(self._shell.user_ns, self._shell.push)
        self._sent = {job: sent for job, sent in self._sent.items() if sent is not result.sent}
        self._left_on_ranks.update({item.name: _why_left(item.reason) for item in result.left_behind})
        if summary := result.summary():
            print(summary)  # noqa: T201
        _enable_inline_figures(result.value)
        return result.value

    def service(self) -> JobServiceClient:
        """Return the connection to the cluster; the first call opens it."""
        if self._service is None:
            from minicluster.client.connect import open_known

            self._service = open_known()
        return self._service

    def service_or_none(self) -> JobServiceClient:
        """Return the connection; without one, a client whose requests fail at once."""
        from minicluster.client.client import NoService
        from minicluster.errors import MiniclusterError

        try:
            return self.service()
        except MiniclusterError as error:
            return NoService(error)

    def use(self, service: JobServiceClient | None) -> None:
        """Use this cluster from now on; None: the default one."""
        # The former connection stays open: handles of detached jobs use it.
        self._service = service

    def run_context(self, plain: bool = False, service: JobServiceClient | None = None) -> RunContext:
        """Return what a run needs from this notebook. service: another one than its own."""
        from minicluster.capture.capture import CaptureLimits
        from minicluster.cell_run import RunContext
        from minicluster.interrupts import RunningKernel
        from minicluster.origin import running_cell

        hidden = self._shell.user_ns_hidden
        space = self._shell.user_ns
        return RunContext(
            service=service or self.service(),
            namespace=space,
            hidden=lambda name: _is_ipythons(name) and name in hidden and hidden[name] is space.get(name),
            limits=CaptureLimits(
                self.send_limit_bytes,
                self.result_limit_bytes,
                self.modules_limit_bytes,
                self.bundle_limit_bytes,
            ),
            tail_lines=self.tail_lines,
            kernel=RunningKernel(self._shell),
            make_screen=self._screens(plain or self.plain, service or self.service()),
            shown_as=self._shown_as,
            origin=running_cell(self._kernel),
            line=self._line,
            sent=self._sent,
            left_on_ranks=self._left_on_ranks,
        )

    def _shown_as(self, filename: str) -> str:
        """Return how tracebacks name a file of this notebook's code: "Cell In[3]"."""
        known = self._shell.compile.format_code_name(filename)
        return filename if known is None else " ".join(known)

    @property
    def _kernel(self) -> Any:
        """The kernel that the shell runs in; a terminal's shell has none."""
        return getattr(self._shell, "kernel", None)

    def _screens(self, plain: bool, service: JobServiceClient) -> MakeScreen:
        if self._is_plain(plain) or importlib.util.find_spec("anywidget") is None:
            from minicluster.display.plain import PlainScreen

            return lambda ask_stop: PlainScreen()
        from minicluster.display.panel import PanelScreen
        from minicluster.origin import page_draws_panels

        address, by_page = service.browser_path(), page_draws_panels(self._kernel)
        return lambda ask_stop: PanelScreen(ask_stop, address, by_page)

    def _is_plain(self, plain: bool) -> bool:
        """Return whether to show text: only a kernel has a front end that shows more."""
        return plain or self.plain or self._kernel is None

    def _mention_nbdistributed(self) -> None:
        cell_magics = self._shell.magics_manager.magics["cell"]
        if "distributed" in cell_magics and not self._mentioned:
            self._mentioned = True
            print(  # noqa: T201
                "Note: nbdistributed is loaded as well. %%distribute (this one) is Minicluster's and runs "
                "on the cluster; %%distributed, with a d at its end, is nbdistributed's."
            )


def _is_ipythons(name: str) -> bool:
    """Whether a name is IPython's own. Its list of hidden names also has those of start-up files."""
    return name.startswith("_") or name in {"In", "Out", "exit", "quit", "open", "get_ipython"}


def _enable_inline_figures(value: Any) -> None:
    """Let the kernel display a figure that came from a rank, even if it has not plotted anything itself."""
    module = sys.modules.get("matplotlib.figure")
    if (
        module is not None
        and isinstance(value, module.Figure)
        and importlib.util.find_spec("matplotlib_inline")
    ):
        # The import is enough: this module checks whether the kernel shows figures under their cells.
        importlib.import_module("matplotlib_inline.backend_inline")


def _why_left(reason: str) -> str:
    return (
        f"stayed on the ranks of an earlier cell ({reason}), which have ended: create it again in this cell."
    )


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics with the shell's configuration, and their completion."""
    magics = Distribute(shell, parent=shell)
    shell.register_magics(magics)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(magics.complete)
    shell.input_transformers_cleanup.append(_allow_help_without_body)


def _allow_help_without_body(lines: list[str]) -> list[str]:
    """Let `%%distribute --help` be a cell's only line: IPython demands a body after a cell magic."""
    first = lines[0].split() if len(lines) == 1 else []
    is_ours = first[:1] in (["%%distribute"], ["%%sweep"])
    return [*lines, "pass\n"] if is_ours and {"--help", "-h"} & {*first} else lines
