"""The messages as they stand on the wire: one golden JSON each, so that a change of format is seen.

A change here breaks agents and notebooks of another version: raise WIRE_VERSION with it.
"""

import json

import pytest
from pydantic import ValidationError

from minicluster import wire

SHA = "ab" * 32
ERROR = {
    "kind": "exception",
    "message": "ValueError: no",
    "rank": 1,
    "node": "node-2",
    "traceback": "Traceback ...",
    "hint": "",
    "exit_code": 1,
    "at": 1700000000.5,
}
BLOB = {"sha256": SHA, "size_bytes": 12}
SPEC = {
    "name": "cell",
    "payload_sha256": SHA,
    "nodes": {"min": 1, "max": 3},
    "slots_per_node": 1,
    "ranks_per_node": 2,
    "env": {"SEED": "1"},
    "timeout_s": 60.0,
    "image": "lab/notebook:2",
    "shm_bytes": 2147483648,
    "quiet_after_s": 300.0,
    "fault_tolerant": True,
}
JOB = {
    "id": 7,
    "owner": "ada",
    "name": "cell",
    "state": "failed",
    "reason": "",
    "created_at": 1.0,
    "started_at": 2.0,
    "ended_at": 3.0,
    "attempt": 1,
    "world_size": 3,
    "nodes": ["node-1"],
    "error": ERROR,
    "result": BLOB,
    "queue_position": None,
    "expected_start_at": None,
    "note": "Rank 2 never reached the barrier.",
}
RECORD = {
    "kind": "log",
    "rank": 0,
    "at": 1.5,
    "step": 3.0,
    "values": {"loss": "NaN"},
    "done": None,
    "total": None,
    "label": "",
}
RUN = {
    "attempt": 4,
    "job_id": 7,
    "payload_sha256": SHA,
    "first_rank": 2,
    "local_world_size": 1,
    "world_size": 3,
    "group_rank": 2,
    "group_world_size": 3,
    "master_addr": "127.0.0.1",
    "master_port": 40000,
    "restart_count": 0,
    "env": {},
    "quiet_after_s": 120.0,
    "snapshot": {"step": 120, "attempt": 3, "parts": [BLOB]},
    "fault_tolerant": True,
    "lighthouse": "minicluster-lighthouse-4:29510",
    "joins": False,
    "lead": True,
    "peers": ["task-8:4001"],
}
SLOT = {"slot": 0, "kind": "gpu", "job_id": 7, "owner": "ada", "warm": False, "server": None, "until": None}
SERVER_SLOT = {**SLOT, "slot": 1, "job_id": None, "server": "", "until": 1700000000.5}
PLACE = {
    "owner": "ada",
    "server": "",
    "node": "node-1",
    "slots": [1],
    "home_node": "node-1",
    "until": 1700000000.5,
    "expired": False,
}
FRAME = {"file": "Cell In[5]", "line": 14, "function": "train", "cell": True, "text": "dist.barrier()"}
STACK = {"rank": 2, "sight": "seen", "quiet_s": 12.5, "frames": [FRAME], "helpers": [[FRAME]]}
NODE = {"name": "node-1", "up": True, "slots": [SLOT, SERVER_SLOT]}
GOLDEN = {
    wire.JobSubmit: {"idempotency_key": "key-00001", "spec": SPEC},
    wire.Job: JOB,
    wire.JobWhy: {
        "job_id": 7,
        "state": "running",
        "sentence": "Rank 2 never reached the barrier of cell line 14.",
        "hint": "",
        "ranks": [STACK],
    },
    wire.JobList: {"jobs": [JOB]},
    wire.NodeList: {"nodes": [NODE]},
    wire.ErrorAnswer: {"error": {"code": "unknown_job", "message": "no job 9", "hint": ""}},
    wire.LogChunk: {
        "stream": "rank-0",
        "offset": 5,
        "size_bytes": 3,
        "text": "abc",
        "skipped_bytes": 0,
        "attempt": 2,
    },
    wire.Records: {"records": [RECORD]},
    wire.TaskReport: {
        "ready": True,
        "address": "127.0.0.1",
        "store_port": 40000,
        "attempt": 4,
        "ranks": [{"rank": 2, "state": "exited", "exit_code": 1, "error": ERROR}],
        "chunks": [{"stream": "rank-2", "offset": 0, "data": "AP8K"}],
        "result": BLOB,
        "cleared": 3,
        "failure": None,
        "notes": ["rank 2 hung at its exit"],
        "quiet": [2],
        "look": 8,
        "stacks": [STACK],
        "unreached": ["task-8:4001"],
        "snapshots": [{"step": 120, "attempt": 4, "blob": BLOB, "part": 0, "parts": 1, "keep": 2}],
    },
    wire.SnapshotList: {
        "snapshots": [{"step": 120, "attempt": 1, "size_bytes": 12, "created_at": 1700000000.5}]
    },
    wire.ReportAnswer: {"sizes": {"rank-2": 3}},
    wire.PlaceServer: {
        "image": "lab/notebook:2",
        "node": "node-1",
        "gpus": 1,
        "gpu_s": 3600.0,
        "shared_home": False,
        "new_home": False,
    },
    wire.ServerPlace: PLACE,
    wire.ServerList: {"servers": [PLACE]},
    wire.TaskOrders: {"version": "0123", "run": RUN, "stop": "interrupt", "look": 8},
}


@pytest.mark.parametrize(
    ("model", "golden"), GOLDEN.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_each_message_keeps_its_form(model, golden):
    text = json.dumps(golden)
    message = wire.parse_strict(model, text)
    written = json.loads(message.model_dump_json())
    for chunk in written.get("chunks", ()):
        chunk["data"] = chunk["data"].strip()
    assert written == golden


@pytest.mark.parametrize("model", GOLDEN, ids=lambda model: model.__name__)
def test_servers_refuse_unknown_fields_and_clients_pass_over_them(model):
    text = json.dumps({**GOLDEN[model], "from_a_newer_version": 1})
    with pytest.raises(ValidationError, match="from_a_newer_version"):
        wire.parse_strict(model, text)
    known = wire.parse_strict(model, json.dumps(GOLDEN[model]))
    assert model.model_validate_json(text).model_dump_json() == known.model_dump_json()


def test_unknown_fields_are_refused_inside_too():
    text = json.dumps({"idempotency_key": "key-00001", "spec": {**SPEC, "gpus": 3}})
    with pytest.raises(ValidationError, match="gpus"):
        wire.parse_strict(wire.JobSubmit, text)


def test_bytes_of_a_stream_come_back_to_the_last_one():
    data = bytes(range(256)) * 10
    sent = wire.StreamChunk.model_construct(stream="rank-0", offset=0, data=data).model_dump_json()
    assert wire.StreamChunk.model_validate_json(sent).data == data


def test_messages_cannot_be_changed():
    with pytest.raises(ValidationError):
        wire.NodeRange(min=1, max=2).min = 5


@pytest.mark.parametrize("stream", ["../x", "rank-", "rank-0/..", "RECORDS", "agent-1.log"])
def test_a_streams_name_cannot_leave_its_folder(stream):
    with pytest.raises(ValidationError):
        wire.StreamChunk(stream=stream, offset=0, data=b"")
