"""Paths of the files of a job's tasks in one folder."""

from minicluster.results.downloads import ROWS, file_table, placed
from minicluster.wire import Artifact, ArtifactList


def file(path, part=0, content="a"):
    return Artifact(path=path, part=part, size_bytes=10, sha256=content.rjust(64, "0"), created_at=1.0)


def places(*files):
    return {place: (one.part, one.path) for place, one in placed(files).items()}


def test_what_is_the_same_on_all_nodes_is_there_once():
    assert places(file("a", 1), file("a", 0), file("b", 2)) == {"a": (0, "a"), "b": (2, "b")}


def test_what_differs_is_told_apart_by_its_task():
    found = places(file("a"), file("a", 1, "b"), file("a", 2, "c"))
    assert found == {"a": (0, "a"), "task-1/a": (1, "a"), "task-2/a": (2, "a")}


def test_no_file_takes_the_place_of_another_or_of_a_folder():
    found = places(file("a"), file("task-1/a"), file("a", 1, "b"), file("b/c"), file("b", 1), file("a/d", 2))
    assert found == {
        "a": (0, "a"),
        "task-1/a": (0, "task-1/a"),
        "task-1_/a": (1, "a"),
        "b/c": (0, "b/c"),
        "task-1/b": (1, "b"),
        "task-2/a/d": (2, "a/d"),
    }


def test_a_long_list_says_how_to_get_all():
    table = file_table(ArtifactList(artifacts=tuple(file(f"{n:04}") for n in range(ROWS + 3))), 7, "/s/")
    assert len(table.rows) == ROWS + 1
    assert table.rows[-1] == ("… and 3 more", "", "", "%distribute files 7 --to FOLDER downloads all of them")
    assert table.rows[0][3] == "/s/api/jobs/7/files/0000?part=0"
    assert '<a href="/s/api/jobs/7/files/0000?part=0" target="_blank"' in table._repr_html_()
    assert "mc.output()" in repr(file_table(ArtifactList(artifacts=()), 7, "/s/"))
