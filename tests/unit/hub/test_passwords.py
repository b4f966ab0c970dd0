"""Users and passwords of the embedded cluster: stored as hashes, never lost or exposed."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minicluster_hub.login import accounts_file
from minicluster_hub.login.accounts_file import (
    LastAdmin,
    PasswordFile,
    PasswordFileBroken,
    PasswordRefused,
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
    monkeypatch.setattr(accounts_file, "make_password", lambda: "the same")
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


def test_a_person_chooses_a_password_that_is_long_enough_and_not_the_name(users: PasswordFile) -> None:
    users.add("ada.lovelace")
    for bad in ("", "short one", "x" * 257, "Ada.Lovelace"):
        with pytest.raises(PasswordRefused):
            users.set_password("ada.lovelace", bad)
    users.set_password("ada.lovelace", " ten chars ")
    assert users.verify("ada.lovelace", " ten chars ") is not None
    assert users.verify("ada.lovelace", "ten chars") is None


def test_each_password_has_a_version_of_its_own_and_rights_do_not_change_it(users: PasswordFile) -> None:
    versions = []
    for act in (users.add, users.reset, lambda name: users.set_password(name, "the same words")) * 2:
        if "ada" not in users.users() or act != users.add:
            act("ada")
        versions.append(users.users()["ada"].version)
    assert len(set(versions)) == 5
    users.set_admin("ada", True)
    assert users.users()["ada"].version == versions[-1]


def test_a_removed_user_is_gone_and_somebody_stays_an_admin(users: PasswordFile) -> None:
    users.add_first()
    password = users.add("ada")
    with pytest.raises(LastAdmin):
        users.remove("admin")
    with pytest.raises(LastAdmin):
        users.set_admin("admin", False)
    users.set_admin("ada", True)
    users.remove("admin")
    assert list(users.users()) == ["ada"]
    assert users.verify("ada", password) is not None
    with pytest.raises(UserUnknown):
        users.remove("admin")


def test_a_change_by_another_program_is_seen_at_once(users: PasswordFile) -> None:
    other = PasswordFile(users.path)
    for number in range(20):
        other.add(f"user{number}")
        assert f"user{number}" in users.users()


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
    """CPU time, so that other load does not change it."""
    start = time.thread_time()
    users.verify(name, "wrong")
    return time.thread_time() - start


def test_generated_passwords_are_long_enough_and_readable() -> None:
    generated = {make_password() for _ in range(200)}
    assert len(generated) == 200
    assert all(set(password) <= set("abcdefghijklmnoprstuvz-") for password in generated)
    syllables = len(accounts_file._CONSONANTS) * len(accounts_file._VOWELS)
    assert 10 * math.log2(syllables) >= 60
    assert all(len(password.replace("-", "")) == 20 for password in generated)
