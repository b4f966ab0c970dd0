"""Exports hold each point, and nothing that a spreadsheet would run."""

import csv
import io
import json
import math

from minicluster_hub.runs.export import as_csv, as_json

POINTS = [("loss", 0, 1.0, 2.0, 0.5), ("=cmd()", 1, 2.0, 3.0, math.nan)]


def test_csv_has_a_row_for_each_point():
    rows = list(csv.reader(io.StringIO("".join(as_csv(POINTS)))))
    assert rows[0] == ["name", "rank", "step", "at", "value"]
    assert rows[1] == ["loss", "0", "1.0", "2.0", "0.5"]
    assert rows[2] == ["'=cmd()", "1", "2.0", "3.0", "nan"]


def test_json_is_a_list_with_null_for_what_is_no_number():
    found = json.loads("".join(as_json(POINTS)))
    assert [one["value"] for one in found] == [0.5, None]
    assert json.loads("".join(as_json([]))) == []


def test_long_exports_come_in_pieces():
    pieces = list(as_json(POINTS * 5000))
    assert len(pieces) > 3 and len(json.loads("".join(pieces))) == 10_000
