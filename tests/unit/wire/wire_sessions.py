"""Wire messages of sessions' cells, by class."""

from minicluster.wire import sessions

from .wire_jobs import BLOB, ERROR, SHA

PAYLOAD = "AAEC"
BODY = {"payload": None, "payload_sha256": SHA, "parts": [SHA]}
ENDING = {"result": PAYLOAD, "result_blob": None}
SIGNALS = {"interrupt": 3, "leave": 3}
END = {"rank": 1, "error": ERROR, "interrupted": True, "collectives": 4, "broke_step": True}
ORDER = {"payload": PAYLOAD, "payload_sha256": None, "parts": [], "number": 3, "group": 1, "unfinished": 2}
MESSAGES = {
    sessions.CellSubmit: {**BODY, "idempotency_key": "key-00001", "attempt": 1},
    sessions.CellOrder: ORDER,
    sessions.CellSignals: SIGNALS,
    sessions.CellEnd: END,
    sessions.CellProgress: {**ENDING, "attempt": 4, "number": 3, "ends": [END]},
    sessions.NextCell: {"cell": ORDER},
    sessions.SessionCell: {
        "result": None,
        "result_blob": BLOB,
        "job_id": 7,
        "number": 3,
        "state": "failed",
        "error": ERROR,
        "printed": {"rank-0": "step 1\n"},
        "drawn": True,
        "submitted_at": 1.0,
        "ended_at": 2.5,
    },
}
