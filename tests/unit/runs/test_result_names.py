"""The names of a result are read from its head, whatever a rank put there."""

import json

import pytest

from minicluster_hub.runs.result_names import result_names


def written(path, head, body=b""):
    encoded = json.dumps(head).encode()
    path.write_bytes(b"MCL1" + len(encoded).to_bytes(8, "big") + encoded + body)
    return path


def test_names_are_read_behind_the_other_sections(tmp_path):
    names = json.dumps(["loss", "model"]).encode()
    head = {"sections": {"body": 3, "left_behind": 2, "returned": len(names)}}
    assert result_names(written(tmp_path / "r", head, b"xxxyy" + names)) == ("loss", "model")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ({"sections": {"body": 3}}, b"xxx"),
        ({"sections": {"returned": -5}}, b"xxx"),
        ({"sections": {"returned": 1 << 60}}, b"[1, 2]"),
        ({"sections": {"body": "x", "returned": 2}}, b"[]"),
        ({"sections": 7}, b""),
        ([], b""),
    ],
)
def test_a_head_that_is_wrong_has_no_names(tmp_path, head, body):
    assert result_names(written(tmp_path / "r", head, body)) == ()


def test_a_result_that_is_gone_has_no_names(tmp_path):
    assert result_names(tmp_path / "none") == ()
