"""The file with tokens: readable for its owner only, and written atomically."""

import os
import stat

import pytest

from minicluster.client.credentials import Credentials, CredentialsUnusable, SavedCluster

ONE, TWO = SavedCluster(url="https://one/", token="1"), SavedCluster(url="https://two/", token="2", pem="---")


@pytest.fixture
def credentials(tmp_path):
    return Credentials({"XDG_CONFIG_HOME": str(tmp_path / "config")})


def test_nothing_is_kept_at_first(credentials):
    assert credentials.last() is None
    assert credentials.of("https://one/") is None
    assert not credentials.path.parent.exists()


def test_the_last_one_stands_first_and_each_is_there_once(credentials):
    for cluster in (ONE, TWO, ONE.model_copy(update={"token": "new"})):
        credentials.keep(cluster)
    assert credentials.last().token == "new"
    assert credentials.of("https://two/") == TWO
    credentials.forget("https://one/")
    assert credentials.last() == TWO
    assert credentials.of("https://one/") is None


def test_only_the_owner_can_read_it_whatever_the_umask(credentials):
    before = os.umask(0)
    try:
        credentials.keep(ONE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(credentials.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(credentials.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in credentials.path.parent.iterdir()] == [credentials.path.name]


def test_a_file_that_others_can_read_is_refused(credentials):
    credentials.keep(ONE)
    credentials.path.chmod(0o640)
    with pytest.raises(CredentialsUnusable, match="others on this machine") as caught:
        credentials.last()
    assert f"chmod 600 {credentials.path}" in caught.value.hint


def test_a_damaged_file_is_told(credentials):
    credentials.keep(ONE)
    credentials.path.write_text("{")
    with pytest.raises(CredentialsUnusable, match="damaged"):
        credentials.last()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CredentialsUnusable, match=r"could not be saved|cannot be read"):
        Credentials({"XDG_CONFIG_HOME": str(tmp_path / "file")}).keep(ONE)
