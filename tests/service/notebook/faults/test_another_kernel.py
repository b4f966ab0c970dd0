"""A laptop is closed: the job continues, and another kernel shows all output and gets the result."""

import os
import subprocess
import sys
import textwrap

from minicluster.client.client import JobServiceClient
from minicluster.wire import JobState

from ....patience import until

FIRST = """
import os
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
shell.run_line_magic("load_ext", "minicluster")
shell.run_cell('''%%distribute --plain --name closed
import time
from pathlib import Path
for i in range(60):
    print('line', i, flush=True)
    while i == 30 and not Path('GO').exists(): time.sleep(0.05)
table = {"rows": list(range(5))}
''')
"""


def test_a_kernel_that_is_killed_costs_neither_output_nor_result(cluster, service, notebook, tmp_path):
    script, go = tmp_path / "first.py", tmp_path / "go"
    script.write_text(textwrap.dedent(FIRST).replace("GO", str(go)))
    kernel = subprocess.Popen([sys.executable, script], env=os.environ, stdout=subprocess.PIPE, text=True)
    try:
        for line in kernel.stdout:
            if "line 5" in line:
                break
    finally:
        kernel.kill()  # The laptop is closed in the middle of a line.
        kernel.wait(10)
    job = next(job for job in service.jobs() if job.name == "closed")
    until(lambda: service.job(job.id).state is JobState.RUNNING)
    go.touch()
    notebook.run(f"%distribute attach {job.id}")
    assert notebook.names["table"] == {"rows": [0, 1, 2, 3, 4]}
    assert whole(service, job.id) == "".join(f"line {i}\n" for i in range(60))

    del notebook.names["table"]
    notebook.run(f"%distribute result {job.id}")
    assert notebook.names["table"] == {"rows": [0, 1, 2, 3, 4]}


def whole(service: JobServiceClient, job_id: int) -> str:
    text, left_out = service.log(job_id, 0, 10**6)
    assert left_out == 0
    return text
