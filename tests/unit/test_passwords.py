"""Users and passwords of the embedded cluster: kept as hashes, never lost, never open."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minicluster_hub import passwords
from minicluster_hub.login_delay import LoginDelays
from minicluster_hub.passwords import (
    PasswordFile,
    PasswordFileBroken,
    UserNameRefused,
    UserUnknown,
    make_password,
)


@pytest.fixture
def users(tmp_path: Path) -> PasswordFile:
    return PasswordFile(tmp_path / "data" / "passwords.json")


def test_a_new_user_gets_in_with_the_password_and_nobody_else(users: PasswordFile) -> None:
    password = users.add("ada")
    entry = users.verify("ada", password)
    assert entry is not None
    assert not entry.admin
    assert users.verify("ada", password + "x") is None
    assert users.verify("ada", "") is None
    assert users.verify("grace", password) is None


def test_the_first_user_is_an_admin_and_made_once(users: PasswordFile) -> None:
    users.add("ada")
    password = users.add_first()
    assert password is not None
    entry = users.verify("admin", password)
    assert entry is not None
    assert entry.admin
    assert users.add_first() is None


def test_the_file_holds_no_password_and_only_its_owner_reads_it(users: PasswordFile) -> None:
    password = users.add("ada")
    text = users.path.read_text()
    assert password not in text
    assert stat.S_IMODE(users.path.stat().st_mode) == 0o600
    assert {path.name for path in users.path.parent.iterdir()} == {"passwords.json", ".passwords.json.lock"}


def test_the_same_password_has_another_hash_for_each_user(
    users: PasswordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "make_password", lambda: "the same")
    users.add("ada")
    users.add("grace")
    entries = users.users()
    assert entries["ada"].hash != entries["grace"].hash


def test_a_password_reset_ends_the_old_password_and_keeps_the_rights(users: PasswordFile) -> None:
    old = users.add("ada", admin=True)
    new = users.reset("ada")
    assert users.verify("ada", old) is None
    entry = users.verify("ada", new)
    assert entry is not None
    assert entry.admin


def test_errors_name_the_user_and_the_way_out(users: PasswordFile) -> None:
    users.add("ada")
    with pytest.raises(UserUnknown, match=r"'grace'.*Users: ada"):
        users.reset("grace")
    with pytest.raises(UserNameRefused, match="--reset-password ada"):
        users.add("ada")


@pytest.mark.parametrize("name", ["", ".hidden", "../etc", "a b", "a/b", "ä", "x" * 64, "a\nb"])
def test_odd_names_are_refused(users: PasswordFile, name: str) -> None:
    with pytest.raises(UserNameRefused):
        users.add(name)


def test_names_are_kept_in_lower_case(users: PasswordFile) -> None:
    users.add(" Ada ")
    assert list(users.users()) == ["ada"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"users": {"ada": {}}}', '{"users": []}', "\x00\xff"])
def test_a_broken_file_is_told_and_lets_nobody_in(users: PasswordFile, text: str) -> None:
    users.path.parent.mkdir()
    users.path.write_text(text)
    for attempt in (users.users, lambda: users.verify("ada", ""), users.add_first, lambda: users.add("ada")):
        with pytest.raises(PasswordFileBroken, match=r"passwords\.json"):
            attempt()
    assert users.path.read_text() == text


def test_an_entry_without_a_hash_lets_nobody_in(users: PasswordFile) -> None:
    users.add("ada")
    document = json.loads(users.path.read_text())
    document["users"]["ada"]["hash"] = ""
    users.path.write_text(json.dumps(document))
    assert users.verify("ada", "") is None


def test_users_made_at_the_same_time_are_all_kept(users: PasswordFile) -> None:
    command = [sys.executable, "-m", "minicluster_hub.launch", "--data", str(users.path.parent), "--add-user"]
    processes = [subprocess.Popen([*command, f"user{n}"], stdout=subprocess.PIPE) for n in range(4)]
    for process in processes:
        assert b"password" in process.communicate()[0]
    assert sorted(users.users()) == [f"user{n}" for n in range(4)]


@pytest.mark.alone("it compares two times")
def test_an_unknown_user_takes_as_long_as_a_wrong_password(users: PasswordFile) -> None:
    users.add("ada")
    wrong, unknown = (min(_seconds(users, name) for _ in range(5)) for name in ("ada", "nobody"))
    assert unknown == pytest.approx(wrong, rel=0.5)
    assert min(wrong, unknown) > 0.005


def _seconds(users: PasswordFile, name: str) -> float:
    start = time.perf_counter()
    users.verify(name, "wrong")
    return time.perf_counter() - start


def test_generated_passwords_are_long_enough_and_readable() -> None:
    generated = {make_password() for _ in range(200)}
    assert len(generated) == 200
    assert all(set(password) <= set("abcdefghijklmnoprstuvz-") for password in generated)
    syllables = len(passwords._CONSONANTS) * len(passwords._VOWELS)
    assert 10 * math.log2(syllables) >= 60
    assert all(len(password.replace("-", "")) == 20 for password in generated)


def test_wrong_passwords_make_a_name_wait_longer_each_time_but_never_too_long() -> None:
    delays = LoginDelays(free_tries=3, longest_s=60.0)
    waits = []
    for _ in range(12):
        delays.failed("ada", now=100.0)
        waits.append(delays.wait_s("ada", now=100.0))
    assert waits[:6] == [0, 0, 1, 2, 4, 8]
    assert waits[-1] == 60.0
    assert delays.wait_s("ada", now=160.0) == 0
    assert delays.wait_s("grace", now=100.0) == 0


def test_a_right_password_ends_the_waiting() -> None:
    delays = LoginDelays(free_tries=1)
    delays.failed("ada", now=0.0)
    delays.succeeded("ada")
    assert delays.wait_s("ada", now=0.0) == 0


def test_many_made_up_names_take_no_memory_for_ever() -> None:
    delays = LoginDelays(free_tries=1, names_kept=100)
    for number in range(1000):
        delays.failed(f"name{number}", now=0.0)
    assert delays.wait_s("name0", now=0.0) == 0
    assert delays.wait_s("name999", now=0.0) == 1
