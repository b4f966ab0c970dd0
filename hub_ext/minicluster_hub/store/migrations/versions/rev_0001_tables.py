"""The first tables. Never changed after a release: later ones alter what this made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _jobs()
    _events()
    _gangs()
    _attempts()
    _tasks()
    _ranks()
    _leases()
    _blobs()


def downgrade() -> None:
    for table in ("blobs", "leases", "ranks", "tasks", "attempts", "gangs", "events", "jobs"):
        op.drop_table(table)


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.Column("state_since", sa.Float(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer()),
        sa.Column("gang_id", sa.Integer()),
        sa.Column("world_size", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("result_sha256", sa.String(64)),
        sa.Column("result_size_bytes", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_jobs_owner_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_owner_id", "jobs", ["owner", "id"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])


def _gangs() -> None:
    op.create_table(
        "gangs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("target", sa.String(8), nullable=False),
        sa.Column("job_id", sa.Integer()),
        sa.Column("slots_per_node", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("idle_since", sa.Float()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_gangs_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_gangs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_gangs_job_id", "gangs", ["job_id"])


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("gang_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("result_sha256", sa.String(64)),
        sa.Column("result_size_bytes", sa.BigInteger()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_attempts_job_id"),
        sa.ForeignKeyConstraint(["gang_id"], ["gangs.id"], name="fk_attempts_gang_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("job_id", "number", name="uq_attempts_job_id_number"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_attempts_gang_id_id", "attempts", ["gang_id", "id"])


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("gang_id", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("slots", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("token_hash", sa.String(128), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("store_port", sa.Integer()),
        sa.Column("cleared", sa.Integer(), nullable=False),
        sa.Column("failure", sa.Text()),
        sa.Column("state_since", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["gang_id"], ["gangs.id"], name="fk_tasks_gang_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
        sa.UniqueConstraint("gang_id", "index", name="uq_tasks_gang_id_index"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tasks_state", "tasks", ["state"])
    op.create_index("ix_tasks_token_hash", "tasks", ["token_hash"])


def _ranks() -> None:
    op.create_table(
        "ranks",
        sa.Column("attempt_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name="fk_ranks_attempt_id"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_ranks_task_id"),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name="pk_ranks"),
    )


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer()),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("warm", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_leases_task_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_leases_job_id"),
        sa.PrimaryKeyConstraint("node", "slot", name="pk_leases"),
    )
    op.create_index("ix_leases_task_id", "leases", ["task_id"])
    op.create_index("ix_leases_job_id", "leases", ["job_id"])


def _blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "sha256", name="pk_blobs"),
    )
