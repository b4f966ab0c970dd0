"""Positions where streams may be cut, and the cursor from which a reader resumes."""

import pytest

from minicluster.wire import Record
from minicluster_hub.api.feed import Cursor, line_start, whole_lines, whole_text
from minicluster_hub.web.errors import ApiError


@pytest.mark.parametrize(
    "text", ["E1", "A1;E1", "E1;A1;rank-x=3", "E1;A1;../../x=3", "E1;A1;rank-0=-3", "x" * 999]
)
async def test_a_made_up_cursor_is_refused(api, text):
    with pytest.raises(ApiError):
        Cursor.parse(text)
    job = await api.submit(nodes=5)
    answer = await api.client("ada-token", **{"Last-Event-ID": text}).get(f"api/jobs/{job.id}/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_cursor")


def test_a_cursor_reads_what_it_wrote():
    cursor = Cursor(12, 3, {"rank-0": 5, "records": 0, "agent-2": 77})
    assert Cursor.parse(str(cursor)) == cursor


def test_text_is_cut_at_characters():
    data = "aé€😀".encode()
    for cut in range(len(data) + 1):
        text, used = whole_text(data[:cut], final=False)
        assert text == data[:used].decode()
        assert cut - used <= 3
    assert whole_text(b"a\xf0\x9f", final=True) == ("a\ufffd", 3)
    assert whole_text(b"\xff\xfeok", final=False) == ("\ufffd\ufffdok", 4)


def test_a_tail_starts_at_a_line_or_else_at_a_character():
    assert line_start(b"rest of it\nnext\n") == 11
    assert line_start("€uro".encode()[1:]) == 2
    assert line_start(b"only a bar\r") == 0


def test_records_are_whole_lines_and_others_are_left_out():
    line = b'{"kind":"log","rank":0,"at":1.0,"step":3}\n'
    records, used = whole_lines(Record, line + b"no record\n" + line[:10], final=False)
    assert ([record.step for record in records], used) == ([3.0], len(line) + 10)
