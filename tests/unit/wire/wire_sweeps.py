"""Wire messages of sweeps, by class."""

from minicluster.wire.sweeps import sweeps, trials

from .wire_jobs import ORIGIN, SPEC

RANGE = {"kind": "number", "low": 1e-5, "high": 0.1, "log": True, "step": None, "whole": False}
CHOICES = {"kind": "choices", "choices": [32, "wide", True, None, 0.5]}
SETTINGS = {
    "metric": "val_loss",
    "maximize": False,
    "trials": 40,
    "search": "tpe",
    "prune": "median",
    "at_once": 3,
    "seed": 7,
}
TRIAL = {
    "number": 12,
    "job": 31,
    "state": "complete",
    "value": 0.25,
    "step": 9.0,
    "params": {"lr": 0.01, "width": 64, "kind": "wide", "bias": True, "norm": None},
    "created_at": 1.0,
    "started_at": 2.0,
    "ended_at": 3.5,
    "error": "",
}
SWEEP = {
    "id": 3,
    "owner": "ada",
    "name": "fit",
    "state": "running",
    "settings": SETTINGS,
    "created_at": 1.0,
    "ended_at": None,
    "counts": {"complete": 13, "pruned": 4, "running": 3},
    "best": TRIAL,
    "note": "",
    "error": "",
    "spent_s": 61.5,
}
MESSAGES = {
    trials.SuggestParameter: {"attempt": 4, "name": "lr", "among": RANGE},
    trials.SuggestedParameter: {"value": 0.01},
    trials.LeaveTrial: {"attempt": 4, "call": 9, "step": 8.0},
    sweeps.SweepSubmit: {
        "idempotency_key": "key-00001",
        "spec": SPEC,
        "settings": SETTINGS,
        "run": ORIGIN,
    },
    sweeps.SweepList: {"sweeps": [SWEEP]},
    sweeps.SweepDetails: {
        "sweep": SWEEP,
        "trials": [TRIAL],
        "spaces": {"lr": RANGE, "width": CHOICES},
        "version": "0123",
    },
    sweeps.Importance: {"shares": {"lr": 0.75, "width": 0.25}, "trials": 17},
}
