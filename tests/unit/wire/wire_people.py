"""Wire messages of policies, quotas, claims, accounts and notices, by class."""

from minicluster import wire
from minicluster.wire import starts

from .wire_jobs import SPEC

CHOICE = {"policy": "time_slice", "placement": "pack", "options": {"quantum_s": 60.0}}
FIGURES = {
    "average_s": 100.0,
    "median_s": 90.0,
    "p99_s": 400.0,
    "longest_wait_s": 300.0,
    "makespan_s": 600.0,
    "restarts": 0.5,
    "evenness": 0.9,
    "busy": 0.75,
}
USAGE = {
    "owner": "",
    "group": "vision",
    "period": "2026-W47",
    "slot_hours": 3.0,
    "gpu_hours": 2.0,
    "server_gpu_hours": 0.5,
    "shared_gpu_hours": 1.0,
    "jobs": 4,
}
WISHES = {"events": ["ended", "failed"], "webhook": "https://chat.lab:8065/x", "email": "ada@lab.org"}
QUEUED = {
    "id": 7,
    "name": "train",
    "position": 2,
    "reason": "waits for job 5, which is ahead of it in the queue",
    "expected_start_at": 1700000600.0,
    "latest_start_at": 1700001200.0,
}
AHEAD = {"owner": "bob", "slots": 2, "since": 1700000000.0, "why": "came earlier"}
SHARE = {
    "slots": 1,
    "fair_slots": 1.5,
    "cluster_slots": 3,
    "weight": 1.0,
    "used_slot_hours": 2.0,
    "others_slot_hours": 4.0,
    "quotas": [{"kind": "slots", "limit": 2.0, "used": 1.0, "summary": "at once"}],
}
CLAIM = {
    "kind": "reservation",
    "holder": "group:vision",
    "nodes": ["node-1"],
    "slots": 4,
    "begins_at": 1e9,
    "ends_at": 2e9,
    "note": "demo",
}
ALLOWANCES = {"quotas": {"ada": {"slots": 4.0, "jobs": None}}, "shares": {"group:vision": 2.0}}
MESSAGES = {
    wire.Allowances: ALLOWANCES,
    wire.AllowancesReport: {
        "in_force": {"allowances": ALLOWANCES, "by": "root", "since": 1e9},
        "kinds": [{"name": "slots", "summary": "slots at once"}],
        "groups": {"ada": ["vision"]},
    },
    wire.MakeReservation: CLAIM,
    wire.ReservationList: {
        "claims": [{"id": 3, **CLAIM, "by": "root", "over": "", "told": "4 slots are reserved"}],
    },
    wire.DrainNode: {"note": "new memory"},
    wire.PolicyChoice: CHOICE,
    wire.PolicyReport: {
        "in_force": {"choice": CHOICE, "by": "root", "since": 1700000000.5},
        "trouble": "",
        "batch_queue": "",
        "policies": [
            {
                "name": "time_slice",
                "summary": "Turns.",
                "options": [{"name": "quantum_s", "kind": "float", "default": 600.0}],
                "distribution": "ours 1.2",
            }
        ],
        "placements": [{"name": "pack", "summary": "Best fit.", "options": [], "distribution": ""}],
        "shadow": {
            "since": 1700000000.0,
            "until": 1700604800.0,
            "jobs": 0,
            "left_out": 0,
            "placement": "pack",
            "really": None,
            "policies": [],
            "assumed": [],
        },
    },
    wire.WhatIfReport: {
        "since": 1700000000.0,
        "until": 1700604800.0,
        "jobs": 12,
        "left_out": 1,
        "placement": "pack",
        "really": FIGURES,
        "policies": [
            {"policy": "backfill", "figures": FIGURES, "trouble": ""},
            {"policy": "fifo", "figures": None, "trouble": "at 3 s: no event is left"},
        ],
        "assumed": ["time limits end no job"],
    },
    wire.UsageReport: {
        "since": 1700000000.0,
        "until": 1700003600.0,
        "by": "group",
        "period": "week",
        "rows": [USAGE],
        "note": "counted in each of their groups: ada",
    },
    wire.NoticeSettings: WISHES,
    wire.NoticeReport: {
        "wishes": WISHES,
        "hosts": ["chat.lab:8065"],
        "emails": True,
        "email_confirmed": True,
        "trouble": "no answer",
    },
    wire.EmailCode: {"code": "01234567"},
    wire.Notice: {
        "id": "0" * 32,
        "event": "failed",
        "at": 1700000000.5,
        "job_id": 7,
        "name": "train",
        "state": "failed",
        "server": None,
        "reason": "rank 1 raised an exception",
        "url": "https://lab.org/services/minicluster/jobs/7",
        "text": "Job 7 (train) has failed: rank 1 raised an exception.",
    },
    wire.MyQueue: {
        "now": 1700000000.5,
        "policy": "fair_share",
        "jobs": [QUEUED],
        "share": SHARE,
        "before": [AHEAD],
        "running": [{**AHEAD, "why": "a job that runs"}],
    },
    starts.StartQuestion: {"specs": [SPEC]},
    starts.StartAnswer: {
        "now": 1700000000.5,
        "starts": [
            {
                "refused": "",
                "hint": "",
                "nodes": 3,
                "at_once": False,
                "reason": "needs 3 nodes with 1 free slot each; 2 are free until job 7 ends",
                "expected_start_at": 1700000600.0,
                "latest_start_at": None,
            }
        ],
        "nodes": [],
    },
}
