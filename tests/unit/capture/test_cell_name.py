"""Names of cells' jobs, from what front ends report about the notebook."""

from __future__ import annotations

import pytest

from minicluster.origin import cell_name


@pytest.mark.parametrize(
    ("session", "names", "told"),
    [
        ("/home/ada/work/quickstart.ipynb", {}, "quickstart [3]"),
        ("my run.ipynb", {}, "my run [3]"),
        (None, {"__vsc_ipynb_file__": "/home/ada/train.ipynb"}, "train [3]"),
        ("/home/ada/console-1-6f2a", {}, ""),
        (None, {}, ""),
        (f"{'long' * 50}.ipynb", {}, f"{'long' * 20} [3]"),
    ],
)
def test_a_job_is_called_by_its_notebook(
    monkeypatch: pytest.MonkeyPatch, session: str | None, names: dict[str, str], told: str
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if session is not None:
        monkeypatch.setenv("JPY_SESSION_NAME", session)
    assert cell_name(3, names) == told
