"""A data set on one machine, end to end: pushed from a notebook, fetched by the agent, read by ranks."""

from __future__ import annotations

import pytest

from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

PUSH = """
from pathlib import Path
Path("words").mkdir(exist_ok=True)
Path("words/one.txt").write_text("one of them")
%distribute data push words --name words
"""
READ = """%%distribute --nodes 2 --data words --plain
import minicluster as mc
read = (mc.data("words") / "one.txt").read_text()
"""


@pytest.mark.full("tests/service/notebook/files/test_data_sets has it without a hub")
async def test_ranks_read_what_a_notebook_pushed(ada: Visitor) -> None:
    async with open_kernel(ada, "quickstart.ipynb") as kernel:
        for source in (PUSH, READ):
            result = await kernel.run(source)
            assert not [output for output in result if output.output_type == "error"], result
        assert await kernel.evaluate("read") == "'one of them'"
        assert "words" in await kernel.evaluate("get_ipython().run_line_magic('distribute', 'data')")
