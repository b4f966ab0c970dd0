"""Wire messages of jobs, tasks, data, images and nodes, by class."""

from minicluster import wire
from minicluster.wire import jobs
from minicluster.wire.files import compile_caches
from minicluster.wire.streams import SmallResult

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
    "stack": None,
}
BLOB = {"sha256": SHA, "size_bytes": 12}
USE = {"name": "ada/cinic10", "owner": "ada", "manifest_sha256": SHA, "size_bytes": 12, "files": 20}
CELL = {"cell": "1f0c7b5e", "notebook": "lab/quickstart.ipynb", "kernel": "3f1d0b52-5d0c"}
TRIAL = {"sweep": 3, "number": 12, "metric": "val_loss", "prunes": True}
SPEC = {
    "name": "cell",
    "payload_sha256": SHA,
    "nodes": {"min": 1, "max": 3},
    "slots_per_node": 1,
    "ranks_per_node": 2,
    "slots": None,
    "env": {"SEED": "1"},
    "timeout_s": 60.0,
    "image": "lab/notebook:2",
    "shm_bytes": 2147483648,
    "quiet_after_s": 300.0,
    "fault_tolerant": True,
    "priority": 60,
    "bundle_sha256": SHA,
    "data": [USE],
    "origin": CELL,
    "parts": [SHA],
    "seed": 7,
    "comm": "localsgd:period=16",
    "balance": True,
    "trial": TRIAL,
    "session": False,
    "gpu_share": None,
}
ORIGIN = {
    "source": "loss = 1",
    "line": "--nodes 2",
    "script": "",
    "names": [{"name": "model", "type": "Net", "size_bytes": 1000}],
    "packages": {"einops": "0.8.1"},
    "commit": {"commit": "0f1e2d", "branch": "main", "changed": 2},
    "tags": ["baseline"],
    "rerun_of": 6,
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
    "origin": CELL,
    "cell_number": 3,
}
PROGRESS = {"done": 3.5, "total": 20.0, "steps": 70, "gradient_bytes": 44_700_000}
RECORD = {
    "kind": "log",
    "rank": 0,
    "at": 1.5,
    "step": 3.0,
    "values": {"loss": "NaN"},
    "done": None,
    "total": None,
    "label": "",
    "whole": PROGRESS,
    "media": {"name": "samples", "mime": "image/png", "content": "iVBORw0KGgo="},
    "speed": {"steps": 20, "seconds": 2.0, "data": 0.5, "communication": 0.25},
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
    "output": {"files": 10, "size_bytes": 1000},
    "bundle_sha256": SHA,
    "parts": [SHA],
    "data": {"ada/cinic10": "f01d"},
    "seed": 7,
    "comm": "localsgd:period=16",
    "balance": True,
    "trial": TRIAL,
    "session": False,
}
MACHINE = {
    "ago_s": 0.5,
    "cpu_percent": 12.5,
    "cores": 16.0,
    "memory_bytes": 1000,
    "memory_total_bytes": 2000,
    "received_bytes_s": 10.0,
    "sent_bytes_s": 20.0,
    "gpus": [
        {
            "gpu": "GPU-1f0c",
            "model": "RTX",
            "use_percent": 97.0,
            "memory_bytes": 100,
            "memory_total_bytes": 200,
            "temperature_c": 61.0,
            "power_w": 240.0,
            "power_limit_w": 320.0,
        }
    ],
}
DATA_SET = {
    "name": "cinic10",
    "owner": "ada",
    "manifest_sha256": SHA,
    "files": 20,
    "size_bytes": 12,
    "shared": True,
    "created_at": 1.0,
    "nodes": ["node-1"],
    "earlier": [{"manifest_sha256": SHA, "size_bytes": 11, "read_at": 1.0}],
}
DATA_ORDER = {
    "name": "cinic10",
    "folder": "f01d",
    "manifest_sha256": SHA,
    "size_bytes": 12,
    "files": 20,
    "attempt": 4,
}
DATA_STANDING = {
    "folder": "f01d",
    "standing": "fetching",
    "done_bytes": 5,
    "attempt": 3,
    "detail": "there is no room",
    "hint": "",
}
SLOT = {
    "slot": 0,
    "share": 0.5,
    "kind": "gpu",
    "job_id": 7,
    "owner": "ada",
    "warm": False,
    "server": None,
    "until": None,
    "idle_since": None,
    "reclaim_at": None,
    "held_bytes": 0,
}
IDLE = {"idle_since": 1700000000.5, "reclaim_at": 1700000002.5, "held_bytes": 512}
SERVER_SLOT = {**SLOT, **IDLE, "slot": 1, "job_id": None, "server": "", "until": 1700000000.5}
PLACE = {
    "id": 7,
    "owner": "ada",
    "server": "",
    "node": "node-1",
    "slots": [1],
    "home_node": "node-1",
    "until": 1700000000.5,
    "expired": False,
    "environment": {"PIP_INDEX_URL": "https://pypi.lab/simple/"},
    "gpus": ["GPU-ab-1"],
    "gpu_share": 0.5,
    "reclaimed": False,
}
PIN = {"name": "pandas", "version": "2.2.3", "source": "", "sha256": SHA}
IMAGE = {
    "digest": f"sha256:{SHA}",
    "name": "vision",
    "reference": f"127.0.0.1:5100/minicluster/published/ada/vision@sha256:{SHA}",
    "state": "pending",
    "owner": "ada",
    "description": "pandas for all",
    "device": "cpu",
    "size_bytes": 433000000,
    "base_digest": f"sha256:{SHA}",
    "packages": [PIN],
    "more_packages": 3,
    "nodes": ["node-1"],
    "created_at": 1700000000.5,
}
FRAME = {"file": "Cell In[5]", "line": 14, "function": "train", "cell": True, "text": "dist.barrier()"}
COLLECTIVE = {
    "name": "all_reduce",
    "number": 13,
    "group": "0:default_pg",
    "tensors": "float32[10, 20]",
    "is_p2p": False,
    "is_over": False,
}
STACK = {
    "rank": 2,
    "sight": "seen",
    "quiet_s": 12.5,
    "ending": "",
    "frames": [FRAME],
    "helpers": [[FRAME]],
    "collective": COLLECTIVE,
}
NODE = {"name": "node-1", "up": True, "slots": [SLOT, SERVER_SLOT], "closed": ""}
VERSIONS = {"python": "3.12.1", "minicluster": "0.1.0", "cloudpickle": "3.1.2", "torch": "2.13.0+cpu"}
DISPLAY = {
    "id": "0123abcd",
    "data": {"text/plain": "<Figure>", "image/png": "iVBORw0KGgo="},
    "width": 640,
    "height": 480,
}
MESSAGES = {
    wire.About: {
        "user": "ada",
        "scopes": ["custom:minicluster:read!user=ada"],
        "wire_version": 1,
        "release": "0.1.0",
        "ranks": VERSIONS,
    },
    jobs.GangToPrepare: {"image": "registry:5000/lab@sha256:1f"},
    jobs.PreparedGang: {"nodes": ["node1", "node2"]},
    wire.JobSubmit: {"idempotency_key": "key-00001", "spec": SPEC, "run": ORIGIN},
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
    SmallResult: {"data": "YWJj"},
    wire.LogChunk: {
        "stream": "rank-0",
        "offset": 5,
        "size_bytes": 3,
        "text": "abc",
        "skipped_bytes": 0,
        "attempt": 2,
    },
    wire.Records: {"records": [RECORD], "more": [RECORD]},
    wire.Progress: PROGRESS,
    wire.TaskReport: {
        "readings": [
            {
                "rank": 2,
                "ago_s": 0.5,
                "cpu_percent": 90.0,
                "memory_bytes": 1000,
                "gpu_percent": 97.0,
                "gpu_memory_bytes": 2000,
                "received_bytes_s": 1e6,
                "sent_bytes_s": 2e6,
            }
        ],
        "ready": True,
        "address": "127.0.0.1",
        "store_port": 40000,
        "attempt": 4,
        "ranks": [{"rank": 2, "state": "exited", "exit_code": 1, "error": ERROR}],
        "chunks": [{"stream": "rank-2", "offset": 0, "data": "AP8K"}],
        "result": BLOB,
        "result_data": "AP8K",
        "cleared": 3,
        "versions": VERSIONS,
        "failure": None,
        "notes": ["rank 2 hung at its exit"],
        "quiet": [2],
        "look": 8,
        "stacks": [STACK],
        "ending": ["The cell is over on rank 2, which waits for thread loader."],
        "unreached": ["task-8:4001"],
        "snapshots": [{"step": 120, "attempt": 4, "blob": BLOB, "part": 0, "parts": 1, "keep": 2}],
        "artifacts": [{"path": "a folder/ünïcode", "part": 2, "blob": BLOB}],
    },
    wire.SnapshotList: {
        "snapshots": [
            {"step": 120, "attempt": 1, "size_bytes": 12, "created_at": 1700000000.5, "parts": 2}
        ]
    },
    wire.ArtifactList: {
        "artifacts": [
            {"path": "run/model.pt", "part": 0, "size_bytes": 12, "sha256": SHA, "created_at": 1700000000.5}
        ],
        "keep_until": 1700000001.5,
        "left": ["Left in the output folder on node-1: x (no room)."],
        "more": True,
    },
    wire.DataManifest: {"files": [["train/a.png", 5, False], ["train/b.sh", 7, True]], "pieces": [BLOB]},
    wire.MissingPieces: {"pieces": [BLOB]},
    wire.SaveDataSet: {"manifest_sha256": SHA, "shared": None},
    wire.DataSetList: {"sets": [DATA_SET]},
    wire.DataAgentOrders: {"version": "0123", "wanted": [DATA_ORDER]},
    wire.DataAgentReport: {
        "nodes": ["node-1"],
        "sets": [DATA_STANDING],
        "gpus": [{"gpu": "GPU-ab-1", "idle_s": 12.5, "held_bytes": 512}],
        "addresses": ["10.0.0.1", "fd00::1"],
        "readings": [MACHINE],
    },
    wire.Displays: {
        "rank": 1,
        "attempt": 2,
        "displays": [
            DISPLAY,
            {"id": "fedcba98", "data": {"text/html": "<b>one</b>"}, "width": None, "height": None},
        ],
    },
    wire.Display: DISPLAY,
    wire.SmallFiles: {"contents": ["AP8K"]},
    compile_caches.CompileCache: {"pieces": [BLOB]},
    compile_caches.CompiledEntries: {"environment": SHA, "entries": ["0123456789abcdef"], "damaged": [SHA]},
    wire.ReportAnswer: {"sizes": {"rank-2": 3}, "missing": [SHA]},
    wire.PlaceServer: {
        "image": "lab/notebook:2",
        "node": "node-1",
        "gpus": 1,
        "gpu_s": 3600.0,
        "shared_home": False,
        "new_home": False,
    },
    wire.ImageList: {"images": [IMAGE], "publishing": "ask"},
    wire.PublishImage: {"name": "vision", "job_id": 7, "description": "pandas for all"},
    wire.Publication: {
        "job_id": 7,
        "name": "vision",
        "doing": "sending the layer",
        "sent_bytes": 10,
        "total_bytes": 20,
        "image": IMAGE,
        "problem": "",
        "hint": "",
    },
    wire.Recipe: {
        "packages": [PIN],
        "python": "3.12",
        "machine": "x86_64",
        "layer_sha256": SHA,
        "layer_bytes": 12,
        "diff_sha256": SHA,
    },
    wire.ServerPlacement: PLACE,
    wire.ServerList: {"servers": [PLACE]},
    wire.TaskOrders: {
        "version": "0123",
        "run": RUN,
        "stop": "interrupt",
        "look": 8,
        "leave": True,
        "profile": {"id": 9, "steps": 10, "ranks": [0, 2]},
        "cells": {"interrupt": 3, "leave": 2},
        "coming": [SHA],
    },
    wire.ProfileRequest: {"steps": 10, "ranks": [0, 2]},
}
