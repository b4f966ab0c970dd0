"""Users and their salted password hashes, in one file in the data folder."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FIRST_USER = "admin"
ADMIN_GROUP = "minicluster-admins"
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"
_USER_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,62}")
_N, _R, _P = 2**14, 8, 1
SHORTEST_PASSWORD = 10
LONGEST_PASSWORD = 256
"""In characters. A longer password is refused before it is hashed."""


class PasswordError(Exception):
    """Base of errors of the password file and of names in it."""


class UserNameRefused(PasswordError):
    """A user name has a form that is not allowed, or is taken."""


class UserUnknown(PasswordError):
    """The file has no such user."""


class PasswordRefused(PasswordError):
    """A new password is too short, too long, or the user's name."""


class LastAdmin(PasswordError):
    """The change would leave no admin."""


class PasswordFileBroken(PasswordError):
    """The file exists but cannot be read or parsed."""


@dataclass(frozen=True)
class Account:
    """One user's entry. n, r, p: scrypt's cost, stored so that new passwords can have a higher cost."""

    salt: str
    hash: str
    n: int
    r: int
    p: int
    admin: bool = False

    @property
    def version(self) -> str:
        """Changes whenever a password is set, even to the same one; reveals nothing about it."""
        return hashlib.sha256(f"{self.salt}:{self.hash}".encode()).hexdigest()[:16]

    def matches(self, password: str) -> bool:
        """Compare in constant time. Takes about 50 ms in scrypt, which releases the interpreter's lock."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.n, self.r, self.p), self.hash)


def make_password() -> str:
    """Make a password that can be read aloud: ten syllables out of 80, so 63 bits."""
    syllables = [secrets.choice(_CONSONANTS) + secrets.choice(_VOWELS) for _ in range(10)]
    return "-".join(first + second for first, second in zip(syllables[::2], syllables[1::2], strict=True))


def check_user_name(name: str) -> str:
    """Return the name in its stored form (lower case). Raises UserNameRefused."""
    stored = name.strip().lower()
    if not _USER_NAME.fullmatch(stored):
        raise UserNameRefused(
            f"The user name {name!r} cannot be used: take 1 to 63 of a-z, 0-9 and . _ @ + -,"
            " a letter or digit first."
        )
    return stored


def check_new_password(name: str, password: str) -> None:
    """Raise PasswordRefused, with the rule that a password breaks."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise PasswordRefused(
            f"The new password has {len(password)} characters:"
            f" take {SHORTEST_PASSWORD} to {LONGEST_PASSWORD}."
        )
    if password.lower() == name:
        raise PasswordRefused("The new password is the user name: take another one.")


class PasswordFile:
    """passwords.json. Each use checks it for changes, so that a running hub notices them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[tuple[int, ...], Mapping[str, Account]] = ((), {})

    def users(self) -> Mapping[str, Account]:
        """Return all users; none if the file does not exist yet."""
        try:
            found = self.path.stat()
            state = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
            if self._read[0] != state:
                document = json.loads(self.path.read_text())
                self._read = state, {name: Account(**entry) for name, entry in document["users"].items()}
            return self._read[1]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PasswordFileBroken(
                f"The password file {self.path} cannot be read ({error}). Restore it from a backup. Or move"
                " it away: then the next start makes a new first user."
            ) from error

    def verify(self, name: str, password: str) -> Account | None:
        """Return the user's entry if the password is right. An unknown user takes as long as a known one."""
        entry = self.users().get(name)
        if entry is None:
            _nobody().matches(password)
            return None
        return entry if entry.matches(password) else None

    def add(self, name: str, *, admin: bool = False) -> str:
        """Add a user and return the new password, which is stored only as a hash."""
        name = check_user_name(name)
        with self._locked():
            users = self.users()
            if name in users:
                raise UserNameRefused(
                    f"The user {name!r} exists already. A new password: passwd {name} "
                    f"(with ./run: --reset-password {name})"
                )
            return self._set(users, name, make_password(), admin)

    def reset(self, name: str) -> str:
        """Set a new password and return it; it is stored only as a hash."""
        with self._changing(name) as (users, name):
            return self._set(users, name, make_password(), users[name].admin)

    def set_password(self, name: str, password: str) -> None:
        """Set the password that the user chose. Raises PasswordRefused."""
        check_new_password(name, password)
        with self._changing(name) as (users, name):
            self._set(users, name, password, users[name].admin)

    def set_admin(self, name: str, admin: bool) -> None:
        """Make a user an admin, or no longer one. Raises LastAdmin."""
        with self._changing(name) as (users, name):
            self._keep_an_admin({**users, name: replace(users[name], admin=admin)})

    def remove(self, name: str) -> None:
        """Remove a user. Raises LastAdmin."""
        with self._changing(name) as (users, name):
            self._keep_an_admin({known: entry for known, entry in users.items() if known != name})

    def add_first(self) -> str | None:
        """Add the first admin and return the password; None if there is an admin."""
        if any(entry.admin for entry in self.users().values()):
            return None
        return self.add(FIRST_USER, admin=True)

    @contextmanager
    def _changing(self, name: str) -> Iterator[tuple[Mapping[str, Account], str]]:
        """Lock the file for a change of one user. Raises UserUnknown."""
        name = check_user_name(name)
        with self._locked():
            users = self.users()
            if name not in users:
                known = ", ".join(sorted(users)) or "none yet"
                raise UserUnknown(f"There is no user {name!r} in {self.path}. Users: {known}.")
            yield users, name

    def _keep_an_admin(self, users: Mapping[str, Account]) -> None:
        if not any(entry.admin for entry in users.values()):
            raise LastAdmin("There would be no admin left: make another user an admin first.")
        self._write(users)

    def _set(self, users: Mapping[str, Account], name: str, password: str, admin: bool) -> str:
        salt = secrets.token_hex(16)
        digest = _scrypt(password, salt, _N, _R, _P)
        entry = Account(salt=salt, hash=digest, n=_N, r=_R, p=_P, admin=admin)
        self._write({**users, name: entry})
        return password

    def _write(self, users: Mapping[str, Account]) -> None:
        document: dict[str, Any] = {
            "version": 1,
            "users": {name: asdict(entry) for name, entry in users.items()},
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing the file; readers need no lock."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.path.with_name(f".{self.path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _nobody() -> Account:
    return Account(salt="00" * 16, hash="", n=_N, r=_R, p=_P)


def _scrypt(password: str, salt: str, n: int, r: int, p: int) -> str:
    memory_bytes = 256 * n * r * max(p, 1)
    return hashlib.scrypt(
        password.encode(), salt=bytes.fromhex(salt), n=n, r=r, p=p, maxmem=memory_bytes
    ).hex()
