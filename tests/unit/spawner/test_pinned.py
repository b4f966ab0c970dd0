"""Packages that a user's pip must not replace, written at each start of a notebook server."""

from concurrent.futures import ThreadPoolExecutor

from minicluster_spawner.process import write_constraints


def test_many_servers_that_start_at_once_all_have_the_whole_file(tmp_path):
    """Once, one server removed another's file, and that server did not start."""
    file = tmp_path / "constraints.txt"
    with ThreadPoolExecutor(16) as starts:
        list(starts.map(lambda _: write_constraints(file), range(64)))
    assert "torch==" in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
