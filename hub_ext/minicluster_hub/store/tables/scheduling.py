"""The tables of who may use the cluster how: beside `tables`, whose rules hold here too."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, Table, Text

from minicluster_hub.store.tables.main import METADATA

# What ordered the jobs, and from when on: the newest that did not end is active.
# `ended`: why it was taken back by itself.
POLICIES = Table(
    "policies",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("choice", Text, nullable=False),
    Column("chosen_by", Text, nullable=False),
    Column("since", Float, nullable=False),
    Column("ended", Text, nullable=False),
    sqlite_autoincrement=True,
)

# Who held slots when: a row for each task of a job and each notebook server; no `ended_at`: it still does.
USAGE = Table(
    "usage",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("job_id", Integer),
    Column("server_id", Integer),
    Column("task_id", Integer),
    Column("node", Text, nullable=False),
    Column("slots", Float, nullable=False),
    Column("gpus", Float, nullable=False),
    Column("began_at", Float, nullable=False),
    Column("ended_at", Float),
    Index(None, "ended_at"),
    Index(None, "job_id"),
    sqlite_autoincrement=True,
)

# The hub's groups of each owner, as of when they last asked for something; JSON.
OWNER_GROUPS = Table(
    "owner_groups",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("group_names", Text, nullable=False),
    Column("seen_at", Float, nullable=False),
)

# What admins gave to whom (quotas, weights), one after the other; JSON: the newest is active.
ALLOWANCES = Table(
    "allowances",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("choice", Text, nullable=False),
    Column("chosen_by", Text, nullable=False),
    Column("since", Float, nullable=False),
    sqlite_autoincrement=True,
)

# Reservations, maintenance windows and drained nodes. `holder`: for whom, "" for nobody. `nodes`: JSON,
# empty: any. `slots`: how many, NULL: all of the nodes. `used_at`: when the holder first used some of them.
# `closed_at`: when it was taken back, lapsed or ended, and `closed_reason` says which.
RESERVATIONS = Table(
    "reservations",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("nodes", Text, nullable=False),
    Column("slots", Integer),
    Column("begins_at", Float, nullable=False),
    Column("ends_at", Float),
    Column("note", Text, nullable=False),
    Column("made_by", Text, nullable=False),
    Column("made_at", Float, nullable=False),
    Column("used_at", Float),
    Column("closed_at", Float),
    Column("closed_reason", Text, nullable=False),
    Index(None, "closed_at"),
    sqlite_autoincrement=True,
)
