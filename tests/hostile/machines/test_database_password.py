"""Users of a machine can read its processes' arguments and environments: no password is in them."""

import asyncio
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from minicluster_hub.cluster import entry
from minicluster_hub.cluster.commands.options import parse
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.choosing import chosen, secret_groups

from ... import messages
from ...patience import WITHIN_S
from ...service.api.test_app import answers, free_port, hub, process

__all__ = ["hub"]  # a fixture

SECRET = "a53cr3t"
URLS = (
    f"postgresql://ada:{SECRET}@127.0.0.1:1/jobs",
    f"postgresql+psycopg://ada:{SECRET}@/jobs?host=/none",
    f"postgresql://ada@127.0.0.1:1/jobs?password={SECRET}",
    f"postgresql://ada@127.0.0.1:1/jobs?sslpassword={SECRET}",
)


@pytest.mark.parametrize("option", ["--db-url", "--MiniclusterHub.db_url"])
@pytest.mark.parametrize("url", URLS)
async def test_the_job_service_takes_none_as_an_argument(hub, tmp_path, option, url):
    async with process(hub, free_port(), f"--data-dir={tmp_path}", f"{option}={url}") as service:
        _, errors = await asyncio.wait_for(service.communicate(), WITHIN_S)
    assert service.returncode == 1
    assert "--db-url-file=FILE" in errors.decode() and SECRET not in errors.decode()


async def test_a_service_on_postgresql_shows_nobody_its_password(hub, tmp_path, postgres_url):
    file, port = tmp_path / "db-url", free_port()
    # The tests' server requires no password, but accepts one.
    file.write_text(f"{postgres_url}{'&' if '?' in postgres_url else '?'}password={SECRET}\n")
    async with process(hub, port, f"--data-dir={tmp_path}", f"--db-url-file={file}") as service:
        assert (await answers(port)).json()["ok"]
        seen = psutil.Process(service.pid)
        assert str(file) in str(seen.cmdline())
        assert SECRET not in str([seen.cmdline(), seen.environ()])
        for one in seen.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # An ended process shows nothing.
                assert SECRET not in str([one.cmdline(), one.environ()])


@pytest.mark.parametrize("url", URLS)
async def test_a_server_that_is_not_there_is_told_without_the_password(hub, tmp_path, url):
    file = tmp_path / "db-url"
    file.write_text(url)
    async with process(hub, free_port(), f"--data-dir={tmp_path}", f"--db-url-file={file}") as service:
        _, errors = await asyncio.wait_for(service.communicate(), WITHIN_S)
    assert service.returncode == 1
    assert messages.CHECK_ITS_URL in errors.decode() and SECRET not in errors.decode()


@pytest.mark.parametrize(("content", "told"), [(None, "cannot be read"), (" \n", "is empty")])
async def test_a_file_without_an_url_is_named(hub, tmp_path, content, told):
    file = tmp_path / "db-url"
    if content is not None:
        file.write_text(content)
    async with process(hub, free_port(), f"--data-dir={tmp_path}", f"--db-url-file={file}") as service:
        _, errors = await asyncio.wait_for(service.communicate(), WITHIN_S)
    assert service.returncode == 1
    assert f"{file}, {told}" in errors.decode() and "Traceback" not in errors.decode()


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("option", ["--db-url=", "--service-option=--db-url="])
def test_up_takes_none_as_an_argument(capsys, url, option):
    with pytest.raises(SystemExit):
        parse(["up", f"{option}{url}"])
    text = capsys.readouterr().err
    assert "--db-url-file" in text and SECRET not in text


def test_up_takes_it_from_a_file_into_a_secret_and_nowhere_else(tmp_path, capsys):
    file = tmp_path / "db-url"
    file.write_text(f"{URLS[0]}\n")
    given = parse(["up", "--db-url-file", str(file)])
    choices = chosen(Choices(), given)
    assert choices.has_db_url and SECRET not in repr(choices)  # these become labels
    (group,) = [group for group in secret_groups(choices, given, ()) if group.name == "db_url"]
    assert group.make() == {"db_url": URLS[0]}
    assert parse(["up", "--db-url", "postgresql://ada@db/jobs"]).db_url == "postgresql://ada@db/jobs"
    file.write_text("")
    with pytest.raises(SystemExit):
        parse(["up", "--db-url-file", str(file)])
    assert "is empty" in capsys.readouterr().err


def test_the_containers_job_service_is_given_the_secrets_file(tmp_path, monkeypatch):
    """The program replaces the process, so the test checks the moment before."""
    (tmp_path / "service_token").write_text("a token")
    (tmp_path / "db_url").write_text(URLS[0])
    became: list[list[str]] = []
    monkeypatch.setattr(entry, "SECRETS", Path(tmp_path))
    monkeypatch.setattr(entry, "_become", lambda *command: became.append(list(command)))
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "")
    entry._service([])
    assert f"--db-url-file={tmp_path / 'db_url'}" in became[0]
    assert SECRET not in str(became)
