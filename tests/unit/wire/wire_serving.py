"""Wire messages of served models, by class."""

from minicluster.wire.serving import models, replicas

from .wire_jobs import ORIGIN, SHA, SPEC

TENSOR = {"name": "input", "datatype": "FP32", "shape": [-1, 64]}
SIGNATURE = {
    "input_kind": "tensor",
    "output_kind": "tensor",
    "inputs": [TENSOR],
    "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1, 10]}],
    "batched": True,
    "torch": True,
}
OPTIONS = {
    "batch": 16,
    "batch_wait_s": 0.005,
    "timeout_s": 30.0,
    "open_requests": 64,
    "request_bytes": 4194304,
}
TRAINED = {"job_id": 31, "payload_sha256": SHA, "result_sha256": SHA, "parts": [SHA]}
AUTO = {"metric": "val_acc", "maximize": True}
FIGURES = {"requests": 120, "errors": 1, "per_s": 2.0, "p50_s": 0.01, "p99_s": 0.05}
MODEL = {
    "id": 3,
    "owner": "ada",
    "name": "digits",
    "state": "serving",
    "active": 2,
    "serving": 2,
    "replicas": 2,
    "ready": 2,
    "shared": True,
    "is_open": False,
    "auto": AUTO,
    "created_at": 1.0,
    "path": "answers/ada/digits/",
    "note": "",
    "figures": FIGURES,
}
VERSION = {
    "number": 2,
    "created_at": 2.0,
    "reason": "job 31 is better: val_acc = 0.93, before 0.9",
    "value": 0.93,
    "trained_by": 31,
    "error": "",
    "signature": SIGNATURE,
    "options": OPTIONS,
}
REPLICA = {
    "job_id": 40,
    "version": 2,
    "phase": "ready",
    "node": "node-1",
    "reason": "",
    "since": 3.0,
}
MESSAGES = {
    replicas.ReplicaOf: {
        "model": 3,
        "name": "digits",
        "version": 2,
        "variable": "model",
        "signature": SIGNATURE,
        "options": OPTIONS,
        "trained_by": TRAINED,
    },
    replicas.ReplicaState: {"port": 40123, "ready": True},
    models.ModelSubmit: {
        "idempotency_key": "key-00001",
        "name": "digits",
        "spec": SPEC,
        "signature": SIGNATURE,
        "options": OPTIONS,
        "variable": "model",
        "replicas": 2,
        "shared": True,
        "is_open": False,
        "auto": AUTO,
        "value": 0.9,
        "run": ORIGIN,
    },
    models.ModelChange: {
        "replicas": 2,
        "active_version": 1,
        "auto": AUTO,
        "auto_off": False,
        "shared": True,
        "is_open": False,
    },
    models.ModelList: {"models": [MODEL], "open_allowed": False, "front": "HAProxy"},
    models.ModelDetails: {
        "model": MODEL,
        "versions": [VERSION],
        "replicas": [REPLICA],
        "front": "HAProxy",
        "version": "0123",
    },
    models.ModelEvents: {"events": [{"id": 9, "at": 2.0, "kind": "serving", "text": "version 2"}]},
}
