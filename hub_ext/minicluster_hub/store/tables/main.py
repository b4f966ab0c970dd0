"""The tables. A change here needs a new file in migrations/versions; a test compares the two.

Structured values (specs, errors, slot lists) are JSON text: no query searches in them, and text can hold
what PostgreSQL's jsonb refuses (an escaped NUL in a traceback).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("idempotency_key", String(64), nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("state_since", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    # Attempts in a row that ended with a lost task and got no further than the one before.
    Column("losses", Integer, nullable=False, server_default="0"),
    # Of the newest attempt; no foreign keys, since attempts and gangs point back here.
    Column("attempt_id", Integer),
    Column("gang_id", Integer),
    Column("world_size", Integer),
    Column("error", Text),
    Column("result_sha256", String(64)),
    Column("result_size_bytes", BigInteger),
    # The attempt for which the data sets are on all nodes.
    Column("data_attempt_id", Integer),
    # When its large data was removed: blobs, snapshots, logs.
    Column("removed_at", Float),
    UniqueConstraint("owner", "idempotency_key"),
    Index(None, "state"),
    Index(None, "owner", "id"),
    Index(None, "owner", "removed_at"),
    sqlite_autoincrement=True,
)

GANGS = Table(
    "gangs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("target", String(8), nullable=False),
    Column("job_id", Integer, ForeignKey("jobs.id")),
    Column("slots_per_node", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("idle_since", Float),
    Column("image", Text),
    Column("shm_bytes", BigInteger),
    Index(None, "job_id"),
    sqlite_autoincrement=True,
)

ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("job_id", Integer, ForeignKey("jobs.id"), nullable=False),
    Column("gang_id", Integer, ForeignKey("gangs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("result_sha256", String(64)),
    Column("result_size_bytes", BigInteger),
    UniqueConstraint("job_id", "number"),
    Index(None, "gang_id", "id"),
    sqlite_autoincrement=True,
)

TASKS = Table(
    "tasks",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("gang_id", Integer, ForeignKey("gangs.id"), nullable=False),
    Column("index", Integer, nullable=False),
    Column("node", Text, nullable=False),
    Column("slots", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("token_hash", String(128), nullable=False),
    Column("address", Text, nullable=False),
    Column("store_port", Integer),
    Column("cleared", Integer, nullable=False),
    Column("failure", Text),
    Column("state_since", Float, nullable=False),
    UniqueConstraint("gang_id", "index"),
    Index(None, "state"),
    Index(None, "token_hash"),
    sqlite_autoincrement=True,
)

RANKS = Table(
    "ranks",
    METADATA,
    Column("attempt_id", Integer, ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("task_id", Integer, ForeignKey("tasks.id"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("exit_code", Integer),
    Column("error", Text),
    # Whether its task was added while the attempt was running.
    Column("joined", Boolean, nullable=False, server_default=false()),
    Index(None, "task_id"),
)

# Notebook servers that have a placement, whether they run yet or not.
SERVERS = Table(
    "servers",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("slots", Text, nullable=False),
    Column("until", Float),
    Column("created_at", Float, nullable=False),
    Column("gpus", Text, nullable=False, server_default="[]"),
    Column("warned_at", Float),
    Column("reclaimed_at", Float),
    UniqueConstraint("owner", "name"),
    sqlite_autoincrement=True,
)

# The node of a user's home. The row outlives all servers, so that no server starts with an empty home.
HOMES = Table(
    "homes",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("node", Text, nullable=False),
)

# Each row is half a slot (`slot` is its number, see jobs.slot_numbers); whoever has a whole one has two rows.
# The primary key makes it impossible that two tasks, or a task and a server, hold the same half.
LEASES = Table(
    "leases",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("task_id", Integer, ForeignKey("tasks.id")),
    Column("server_id", Integer, ForeignKey("servers.id")),
    Column("job_id", Integer, ForeignKey("jobs.id")),
    Column("owner", Text, nullable=False),
    Column("warm", Boolean, nullable=False),
    CheckConstraint("(task_id IS NULL) <> (server_id IS NULL)", name="one_holder"),
    Index(None, "task_id"),
    Index(None, "server_id"),
    Index(None, "job_id"),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("job_id", Integer, ForeignKey("jobs.id"), nullable=False),
    Column("at", Float, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("text", Text, nullable=False),
    Index(None, "job_id", "id"),
    sqlite_autoincrement=True,
)

# What a job can resume from. A step's snapshot is complete when all its parts are here.
SNAPSHOTS = Table(
    "snapshots",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("parts", Integer, nullable=False),
    Column("attempt_id", Integer, ForeignKey("attempts.id"), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "attempt_id"),
)

# One row: which of several job services leads. `epoch` grows with each change and fences earlier leaders.
LEADERSHIP = Table(
    "leadership",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("renewed_at", Float, nullable=False),
)

# The environments that a cluster offers, by digest. `name` is unique among those that are not retired.
IMAGES = Table(
    "images",
    METADATA,
    Column("digest", String(71), primary_key=True),
    Column("name", Text, nullable=False),
    Column("reference", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("base_digest", String(71)),
    Column("recipe", Text),
    Column("state", String(8), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    # The size for which a published image counts in its owner's quota: layer in the registry, and recipe.
    Column("layer_bytes", BigInteger, nullable=False, server_default="0"),
    Index(None, "name"),
    Index(None, "owner"),
)

# The nodes where an image has run: they have its layers.
IMAGE_NODES = Table(
    "image_nodes",
    METADATA,
    Column("digest", String(71), ForeignKey("images.digest"), primary_key=True),
    Column("node", Text, primary_key=True),
    Column("seen_at", Float, nullable=False),
)

# The versions that ranks have in an image, as last reported by an agent; "" is the engine's own image.
ENVIRONMENTS = Table(
    "environments",
    METADATA,
    Column("image", Text, primary_key=True),
    Column("versions", Text, nullable=False),
)

# The newest version of each owner's data sets; `manifest_sha256` identifies the version.
DATASETS = Table(
    "datasets",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("manifest_sha256", String(64), nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("shared", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
)

# Which pieces a version consists of, including its manifest. Versions stay as long as something needs them.
DATASET_PIECES = Table(
    "dataset_pieces",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("manifest_sha256", String(64), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Index(None, "owner", "sha256"),
)

# Versions that runs read. One that is not the newest stays some time after a run last read it.
DATASET_VERSIONS = Table(
    "dataset_versions",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("manifest_sha256", String(64), primary_key=True),
    Column("files", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("read_at", Float, nullable=False),
)

# A piece belongs to each user who uploaded its bytes: knowing its hash grants nothing. A piece that no
# version has is removed some time after a push last asked for it.
PIECES = Table(
    "pieces",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("asked_at", Float, nullable=False),
)

# Files that a job left in its output folder. `part`: the position of their task in the attempt.
ARTIFACTS = Table(
    "artifacts",
    METADATA,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("path", Text, primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
)
