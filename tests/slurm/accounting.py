"""A Slurm with its own accounting: slurmdbd and MariaDB."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

from ..patience import until
from .daemons import SlurmDaemons, free_ports

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacctmgr", "sacct")
ACCOUNT = "physics"
_PASSWORD = "of-the-tests"
_SLURMDBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
"""
_LINES = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={{folder}}/munge/socket
AccountingStorageEnforce=associations
"""
_SQL = """
CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';
"""


def lacking() -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"no {', '.join(missing)} (Debian's packages slurmdbd and mariadb-server)" if missing else ""


class AccountedSlurm(SlurmDaemons):
    """All jobs need an account; root has `physics`."""

    def __init__(self) -> None:
        self._port, self._database = free_ports(2, 30_000)
        super().__init__(_LINES.format(port=self._port))

    def start(self) -> None:
        super().start()
        self.run("sacctmgr", "-i", "add", "account", ACCOUNT)
        self.run("sacctmgr", "-i", "add", "user", "root", f"account={ACCOUNT}")

    def before_controller(self) -> None:
        """Start the database and slurmdbd."""
        folder = self.folder / "mariadb"
        installed = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={folder}"]
        subprocess.run([*installed, "--skip-test-db"], capture_output=True, check=True)
        where = [f"--datadir={folder}", f"--socket={self.folder}/db.sock", f"--pid-file={self.folder}/db.pid"]
        self.daemon(
            "mariadbd",
            "--no-defaults",
            "--user=root",
            *where,
            "--bind-address=127.0.0.1",
            f"--port={self._database}",
        )
        until(lambda: self._sql("SELECT 1"))
        assert self._sql(_SQL.format(password=_PASSWORD))
        conf = self.folder / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text(
            _SLURMDBD_CONF.format(
                folder=self.folder, port=self._port, database=self._database, password=_PASSWORD
            )
        )
        self.daemon("slurmdbd", "-D")
        until(self._answers)

    def _sql(self, text: str) -> bool:
        words = ["mariadb", "--no-defaults", f"--socket={self.folder}/db.sock", "--user=root", "-e", text]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def _answers(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            words = ["sacctmgr", "-n", "list", "cluster"]
            done = subprocess.run(words, env=self.environment, capture_output=True, timeout=20, check=False)
            return done.returncode == 0
        return False
