"""Displays of ranks: as in a notebook, at their place between lines, within limits."""

from __future__ import annotations

import base64
import re

from minicluster.display.terminal import DisplayLine, TerminalTail
from minicluster.wire import Display

from ..cluster import Cluster, Run


def displayed(run: Run, rank: int = 0) -> list[Display]:
    """Return the displays in a rank's stream."""
    lines = bytes(run.attempt.streams.get(f"display-{rank}", b"")).splitlines()
    return [Display.model_validate_json(line) for line in lines]


def entries(run: Run, rank: int = 0) -> list[str | DisplayLine]:
    tail = TerminalTail()
    tail.feed(run.attempt.text(rank))
    return tail.entries()


async def done(run: Run) -> Run:
    attempt = await run.over()
    assert attempt.succeeded, run.errors()
    return run


async def test_what_has_html_or_a_picture_stands_between_the_lines_of_its_rank(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os
        from IPython.display import HTML, Image, Markdown, display as shown

        class Table:
            def _repr_html_(self):
                return f"<table><tr><td>{os.environ['RANK']}</td></tr></table>"
            def __repr__(self):
                return "a table\\nin lines"

        print("before")
        display(Table())
        print("between", end="")
        shown(HTML("<b>bold</b>"), Image(b"\\x89PNG....", width=20), Markdown("# head"))
        display(7)
        print("after")
        """,
        nodes=2,
    )
    await done(run)
    for rank in range(2):
        table, html, image, markdown = displayed(run, rank)
        assert table.data["text/html"] == f"<table><tr><td>{rank}</td></tr></table>"
        assert html.data["text/html"] == "<b>bold</b>"
        assert base64.b64decode(image.data["image/png"]) == b"\x89PNG...." and image.width == 20
        assert markdown.data["text/markdown"] == "# head"
        first, last = entries(run, rank)[1], entries(run, rank)[5]
        assert first == DisplayLine(table.id, "a table\nin lines") and last == DisplayLine(
            markdown.id, "# head"
        )
        plain = [entry for entry in entries(run, rank) if isinstance(entry, str)]
        assert plain == ["before", "between", "7", "after"]


async def test_figures_are_shown_once_by_show_or_at_the_end(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import matplotlib.pyplot as plt
        plt.plot([1, 2, 3])
        plt.show()
        print("shown")
        plt.figure()
        plt.plot([3, 2, 1])
        """,
        nodes=2,
    )
    await done(run)
    for rank in range(2):
        kinds = ["text" if isinstance(entry, str) else "figure" for entry in entries(run, rank)]
        assert kinds == ["figure", "text", "figure"]
        for figure in displayed(run, rank):
            assert base64.b64decode(figure.data["image/png"]).startswith(b"\x89PNG")
        assert "Figure" in entries(run, rank)[0].text
        assert "non-interactive" not in run.attempt.text(rank)


async def test_a_figure_that_is_the_value_is_left_to_the_notebook_and_comes_closed(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import matplotlib.pyplot as plt
        figure, axes = plt.subplots()
        axes.plot([1, 2])
        figure
        """,
        nodes=2,
    )
    result = await run.result()
    assert not displayed(run, 0)
    assert len(displayed(run, 1)) == 1
    import matplotlib.pyplot as plt

    assert result["_"].axes and not plt.get_fignums()


async def test_figures_of_a_cell_that_fails_are_shown(cluster: Cluster) -> None:
    run = await cluster.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\n1 / 0", nodes=1)
    assert (await run.culprit()).message.startswith("ZeroDivisionError")
    assert len(displayed(run)) == 1


async def test_what_changes_does_so_in_its_place_and_the_last_state_is_kept(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        from IPython.display import HTML, display, update_display
        display(HTML("0"), display_id="mine")
        handle = display(HTML("first"), display_id=True)
        for step in range(2000):
            update_display(HTML(str(step)), display_id="mine")
        handle.update(HTML("second"))
        print("end")
        """,
        nodes=1,
    )
    await done(run)
    shown = displayed(run)
    assert len(shown) < 100
    last = {display.id: display.data["text/html"] for display in shown}
    one, two, end = entries(run)
    assert isinstance(one, DisplayLine) and last[one.id] == "1999"
    assert isinstance(two, DisplayLine) and last[two.id] == "second"
    assert end == "end"


async def test_clear_output_clears(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        from IPython.display import clear_output
        print("one")
        clear_output()
        print("two")
        clear_output(wait=True)
        print("three")
        """,
        nodes=1,
    )
    await done(run)
    assert entries(run) == ["three"]


async def test_bars_for_notebooks_move(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        from tqdm.auto import tqdm as auto
        from tqdm.notebook import tqdm, trange
        for step in tqdm(range(3), desc="notebook", mininterval=0, display=True): pass
        for step in trange(3, desc="range", mininterval=0): pass
        for step in auto(range(3), desc="auto", mininterval=0): pass
        """,
        nodes=1,
    )
    await done(run)
    shown = [entry for entry in entries(run) if isinstance(entry, str)]
    assert [re.match(r"(\w+): +(\d+)%", line).groups() for line in shown] == [
        ("notebook", "100"),
        ("range", "100"),
        ("auto", "100"),
    ]
    assert re.search(r"notebook: +33%", run.attempt.text(0))


async def test_what_is_too_much_is_said_and_the_text_stays(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        from IPython.display import HTML
        display(HTML("x" * 2_100_000))
        for number in range(8):
            display(HTML(str(number) * 1_500_000))
        print("end")
        """,
        nodes=1,
    )
    await done(run)
    assert [len(display.data["text/html"]) for display in displayed(run)] == [1_500_000] * 5
    text = run.attempt.text(0)
    assert "[text/html of 2.1 MB is not shown: 2 MB" in text and "mc.output()" in text
    assert text.count("its 8 MB are full") == 1
    assert text.count("<IPython.core.display.HTML object>") == 9 and text.endswith("end\n")


async def test_a_forked_child_displays_too_and_nothing_is_torn(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os
        from IPython.display import HTML
        children = []
        for child in range(4):
            pid = os.fork()
            if not pid:
                for number in range(10):
                    display(HTML(f"{child} " * 3000))
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        """,
        nodes=1,
    )
    await done(run)
    assert len(displayed(run)) == 40


async def test_what_nobody_draws_can_be_read(cluster: Cluster) -> None:
    """JSON, LaTeX and libraries' own MIME types are shown as text."""
    run = await cluster.run(
        """
        from IPython.display import JSON, Latex, Math
        display(JSON({"loss": [1, 2]}))
        display(Math("x^2"))
        display({"application/vnd.plotly.v1+json": {"data": []}, "text/plain": "Figure({})"}, raw=True)
        """
    )
    await done(run)
    text = "\n".join(str(one.text) if isinstance(one, DisplayLine) else one for one in entries(run))
    assert '"loss": [' in text and "$\\displaystyle x^2$" in text and "Figure({})" in text
    assert "IPython.core" not in text
