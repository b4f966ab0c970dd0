"""The table of sessions' cells: beside `tables`, whose rules hold here too."""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Integer, String, Table, Text, UniqueConstraint

from minicluster_hub.store.tables.main import METADATA

# `body`: the cell as it was sent, as long as it is not over. `error`, `outcome`: how it ended; JSON.
# `attempt`: of the job, when the cell was submitted; 0: its ranks were not there yet. `output`: how long the
# job's streams were then; JSON.
# `breaks_group`: whether the ranks make their process group anew before the next cell.
SESSION_CELLS = Table(
    "session_cells",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("idempotency_key", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("body", Text),
    Column("state", String(16), nullable=False),
    Column("error", Text),
    Column("outcome", Text),
    Column("output", Text, nullable=False),
    Column("breaks_group", Integer, nullable=False),
    Column("submitted_at", Float, nullable=False),
    Column("ended_at", Float),
    UniqueConstraint("job_id", "idempotency_key"),
)
