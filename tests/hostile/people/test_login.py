"""Attacks on the login, on the pages for accounts, and by users without an account or with a new password."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from minicluster_hub.configure import MOST_BYTES
from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.login.accounts_file import PasswordFile
from minicluster_hub.login.origin import Origin
from minicluster_hub.login.password_check import LoginGate, LoginThrottle

from ...hub.clusters import RunningCluster, run
from ...patience import WITHIN_S, eventually

STRANGER = "127.0.0.66"
OK, WRONG, MANY = httpx.codes.OK, httpx.codes.FORBIDDEN, httpx.codes.TOO_MANY_REQUESTS
WORDS = "some words in a row"
CHOICE = {"new": WORDS, "again": WORDS}
CHECKED_AT_MOST = 12
"""How many of many simultaneous tries are checked or queued: the free ones, and those of half a minute."""


class Guest(Visitor):
    """A browser with its own address, as all of 127.0.0.0/8 is this machine."""

    def __init__(self, lab, name, address="127.0.0.1"):
        super().__init__(lab.cluster.url, name)
        self.http = httpx.AsyncClient(
            base_url=self.url,
            follow_redirects=True,
            timeout=WITHIN_S,
            trust_env=False,
            transport=httpx.AsyncHTTPTransport(local_address=address),
        )

    async def form(self):
        """Return the form fields that a guess needs in addition to the password; fetch the page once."""
        page = await self.http.get("/hub/login")
        return {"username": self.name, "_xsrf": re.search(r'name="_xsrf"\s+value="([^"]+)"', page.text)[1]}

    async def post(self, path, **fields):
        """Submit a form of a hub page as a browser does."""
        page = await self.http.get(path)
        token = re.search(r'name="_xsrf"\s+value="([^"]+)"', page.text)
        return await self.http.post(path, data={"_xsrf": token[1] if token else "", **fields})


async def answers(guesses, refused):
    """Count the answers until so many were refused at once; the other requests are queued."""
    tasks, counts = [asyncio.ensure_future(guess) for guess in guesses], Counter()
    for coming in asyncio.as_completed(tasks):
        answer = await coming
        assert "Login form invalid" not in answer.text
        counts[answer.status_code] += 1
        if counts[MANY] >= refused:
            break
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts


async def test_of_200_guesses_at_once_only_a_few_are_looked_at(lab):
    async with Guest(lab, "guessed-at-once", STRANGER) as stranger:
        form = await stranger.form()
        guesses = [
            stranger.http.post("/hub/login", data={**form, "password": f"guess {number}"})
            for number in range(200)
        ]
        counts = await answers(guesses, refused=200 - CHECKED_AT_MOST)
    assert counts[MANY] == 200 - CHECKED_AT_MOST, counts
    assert counts[WRONG] <= CHECKED_AT_MOST, counts


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-Ip"])
async def test_a_stranger_who_writes_other_addresses_stays_one_stranger(lab, header):
    browsers, guesses = [], []
    for number in range(30):
        browser = Guest(lab, f"guessed-by-{header.lower()}", "127.0.0.67")
        browser.http.headers[header] = f"10.0.0.{number}"
        form = {**await browser.form(), "password": "guess"}
        guesses.append(browser.http.post("/hub/login", data=form))
        browsers.append(browser)
    counts = await answers(guesses, refused=30 - CHECKED_AT_MOST)
    assert counts[MANY] == 30 - CHECKED_AT_MOST, counts
    for browser in browsers:
        await browser.http.aclose()


@pytest.mark.full("in the gate a known browser comes in")
async def test_the_right_password_comes_in_at_once_while_a_stranger_guesses_elsewhere(lab):
    password = lab.cluster.add_user("guessed")
    async with Guest(lab, "guessed", STRANGER) as stranger:
        form = await stranger.form()

        async def guess_on():
            while True:
                await stranger.http.post("/hub/login", data={**form, "password": "guess"})

        guessing = [asyncio.ensure_future(guess_on()) for _ in range(20)]
        for number in range(10):
            async with Guest(lab, "guessed", f"127.0.1.{number + 1}") as person:
                assert (await person.log_in(password)).status_code == OK
        for task in guessing:
            task.cancel()
        await asyncio.gather(*guessing, return_exceptions=True)


async def test_at_the_strangers_address_the_right_password_waits_and_a_known_browser_does_not(lab):
    password = lab.cluster.add_user("beside")
    address = "127.0.0.68"
    async with Guest(lab, "beside", address) as known, Guest(lab, "beside", address) as stranger:
        assert (await known.log_in(password)).status_code == OK
        form = await stranger.form()

        def guess():
            return stranger.http.post("/hub/login", data={**form, "password": "guess"})

        await asyncio.gather(*(guess() for _ in range(5)))
        async with Guest(lab, "beside", address) as person:
            assert (await person.log_in(password)).status_code == OK
        guesses = [asyncio.ensure_future(guess()) for _ in range(20)]
        await eventually(lambda: any(task.done() and task.result().status_code == MANY for task in guesses))
        async with Guest(lab, "beside", address) as person:
            refused = await person.log_in(password)
            assert refused.status_code == MANY
            assert re.search(r"Try again in \d+ s", refused.text)
        await known.http.get("/hub/logout")
        assert (await known.log_in(password)).status_code == OK
        for task in guesses:
            task.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)


async def test_the_cookies_of_browsers_help_only_their_own_user(lab):
    """A user's own browser must not give free guesses at another user's password."""
    browsers = [Guest(lab, "grace", "127.0.0.69") for _ in range(3)]
    guesses = []
    for browser in browsers:
        assert (await browser.log_in(lab.passwords["grace"])).status_code == OK
        await browser.http.get("/hub/logout")
        browser.name = "guessed-by-grace"
        form = {**await browser.form(), "password": "guess"}
        guesses += [browser.http.post("/hub/login", data=form) for _ in range(10)]
    counts = await answers(guesses, refused=30 - CHECKED_AT_MOST)
    assert counts[MANY] == 30 - CHECKED_AT_MOST, counts
    for browser in browsers:
        await browser.http.aclose()


@pytest.mark.full("in the gate 200 guesses come at once")
async def test_a_flood_of_names_and_long_passwords_leaves_the_hub_small(lab):
    before = lab.cluster.hub().memory_info().rss
    async with Guest(lab, "x", "127.0.0.70") as stranger:
        form = await stranger.form()
        for password in ("guess", "x" * (MOST_BYTES // 2)):
            tries = [
                stranger.http.post("/hub/login", data={**form, "username": f"n{n}", "password": password})
                for n in range(60)
            ]
            counts = Counter(answer.status_code for answer in await asyncio.gather(*tries))
            assert set(counts) <= {WRONG, MANY}, counts
    async with Guest(lab, "grace") as grace:
        assert (await grace.log_in(lab.passwords["grace"])).status_code == OK
    assert lab.cluster.hub().memory_info().rss < before + 150_000_000


async def test_a_long_password_is_refused_before_anything_is_computed(tmp_path):
    accounts, looked = PasswordFile(tmp_path / "passwords.json"), []

    class Watched(PasswordFile):
        def verify(self, name, password):
            looked.append(name)
            return accounts.verify(name, password)

    gate = LoginGate(Watched(accounts.path), throttle=LoginThrottle(most_keys=50))
    assert await gate.check("ada", "x" * 1_000_000, Origin("10.0.0.1")) is None
    assert looked == []
    for name in (f"../{number}" for number in range(4)):
        assert await gate.check(name, "guess", Origin("10.0.0.1")) is None
    assert len(looked) == 4, "a name that nobody can have costs as much as any other"
    assert len(gate._throttle) == 1


def server_token(lab, name):
    """Return the token of the user's notebook server, from its process."""
    for process in lab.cluster.processes():
        try:
            environment = process.environ()
        except psutil.NoSuchProcess:
            continue
        if environment.get("JUPYTERHUB_USER") == name and "JUPYTERHUB_API_TOKEN" in environment:
            return environment["JUPYTERHUB_API_TOKEN"]
    raise AssertionError(f"{name} has no server")


async def who(lab, token):
    """Return the hub's answer about a token, as the job service requests it."""
    async with httpx.AsyncClient(base_url=lab.cluster.url, trust_env=False, timeout=WITHIN_S) as http:
        return (await http.get("/hub/api/user", headers={"Authorization": f"token {token}"})).status_code


async def with_session(lab, name):
    """Log a new user in and create all that belongs to a session; return the browser and two tokens."""
    visitor = Guest(lab, name)
    assert (await visitor.log_in(lab.cluster.add_user(name))).status_code == OK
    await visitor.start_server()
    await visitor.http.get(SERVICE_PATH)
    tokens = []
    for note in ("mine", f"Server at /user/{name}/"):
        made = await visitor.call("POST", f"/hub/api/users/{name}/tokens", "/hub/", json={"note": note})
        tokens.append(made["token"])
    assert [await who(lab, token) for token in tokens] == [OK, OK]
    return visitor, tokens


async def is_out(visitor):
    return (await visitor.http.get("/hub/home")).url.path == "/hub/login"


async def test_a_new_password_ends_sessions_and_tokens_but_not_the_running_server(lab):
    visitor, tokens = await with_session(lab, "reset")
    async with visitor:
        own = server_token(lab, "reset")
        assert run("--data", str(lab.cluster.data), "--reset-password", "reset").returncode == 0
        await until_so(lambda: refused(lab, tokens[0]))
        assert await who(lab, own) == OK
        assert await refused(lab, tokens[1]), "a note tells nothing"
        assert await is_out(visitor)
        async with Guest(lab, "admin") as admin:
            await admin.log_in(lab.passwords["admin"])
            kept = await admin.call("GET", "/hub/api/users/reset/tokens", "/hub/")
        assert [token["note"] for token in kept["api_tokens"]] == ["Server at /user/reset/"]


async def refused(lab, token):
    return await who(lab, token) in {401, 403}


async def until_so(question):
    """Wait until the condition holds: the hub reads the file once a second."""
    async with asyncio.timeout(WITHIN_S):
        while not await question():
            await asyncio.sleep(0.1)


@pytest.mark.full("the gate has it on the hub's tables, in tests/unit/hub/test_sessions.py")
async def test_the_server_asks_first_after_a_new_password_and_goes_on(lab):
    visitor, tokens = await with_session(lab, "asked-first")
    async with visitor:
        own = server_token(lab, "asked-first")
        assert run("--data", str(lab.cluster.data), "--reset-password", "asked-first").returncode == 0
        for _ in range(15):
            assert await who(lab, own) == OK
            await asyncio.sleep(0.1)
        await until_so(lambda: refused(lab, tokens[0]))
        assert await who(lab, own) == OK


async def test_ones_own_new_password_ends_the_other_browsers_and_not_this_one(lab):
    visitor, tokens = await with_session(lab, "choosing")
    async with visitor, Guest(lab, "choosing") as other:
        old = run("--data", str(lab.cluster.data), "--reset-password", "choosing").stdout
        old = old.split("password")[1].split()[0]
        await until_so(lambda: is_out(visitor))
        for browser in (visitor, other):
            assert (await browser.log_in(old)).status_code == OK
        fields = {"present": old, "new": "some words in a row", "again": "some words in a row"}
        for wrong in (
            {"present": "wrong"},
            {"again": "other words in a row"},
            {"new": "short", "again": "short"},
        ):
            answer = await visitor.post("/hub/password", **{**fields, **wrong})
            assert answer.status_code == 400
            assert 'role="alert"' in answer.text
        assert not await is_out(other)
        assert 'role="status"' in (await visitor.post("/hub/password", **fields)).text
        assert not await is_out(visitor)
        assert await is_out(other)
        assert await refused(lab, tokens[0])
        assert (await other.log_in(WORDS)).status_code == OK


async def test_guesses_on_the_password_page_wait_as_at_the_login(lab):
    password = lab.cluster.add_user("stolen")
    async with Guest(lab, "stolen", "127.0.0.71") as thief:
        await thief.log_in(password)
        page = await thief.http.get("/hub/password")
        token = re.search(r'name="_xsrf"\s+value="([^"]+)"', page.text)[1]
        fields = {
            "_xsrf": token,
            "present": "guess",
            "new": "some words in a row",
            "again": "some words in a row",
        }
        guesses = [thief.http.post("/hub/password", data=fields) for _ in range(40)]
        assert (await answers(guesses, refused=40 - CHECKED_AT_MOST))[MANY] == 40 - CHECKED_AT_MOST


async def test_a_removed_person_is_out_with_all_that_was_open(lab):
    visitor, tokens = await with_session(lab, "removed")
    async with visitor, Guest(lab, "admin") as admin:
        own = server_token(lab, "removed")
        await admin.log_in(lab.passwords["admin"])
        page = await admin.post("/hub/people", action="remove", name="removed")
        assert 'role="status"' in page.text
        assert 'data-name="removed"' not in page.text
        assert [await refused(lab, token) for token in (*tokens, own)] == [True] * 3
        assert await is_out(visitor)
        users = await admin.call("GET", "/hub/api/users/removed", "/hub/")
        assert not users["server"]
        password = lab.cluster.add_user("removed")
        assert await is_out(visitor), "an account of the same name is not the same"
        assert [await refused(lab, token) for token in (*tokens, own)] == [True] * 3
        assert (await visitor.log_in(password)).status_code == OK


@pytest.mark.full("the gate has it by the page")
async def test_a_person_removed_by_the_command_is_out_and_the_server_ends(lab):
    visitor, tokens = await with_session(lab, "removed-too")
    async with visitor, Guest(lab, "admin") as admin:
        own = server_token(lab, "removed-too")
        await admin.log_in(lab.passwords["admin"])
        assert run("--data", str(lab.cluster.data), "--remove-user", "removed-too").returncode == 0
        await until_so(lambda: refused(lab, own))
        assert await is_out(visitor)
        assert await refused(lab, tokens[0])

        async def stopped():
            return not (await admin.call("GET", "/hub/api/users/removed-too", "/hub/"))["server"]

        await until_so(stopped)


@pytest.mark.full("the gate has it by our page")
async def test_a_user_deleted_on_the_hubs_own_page_does_not_come_back(lab):
    password = lab.cluster.add_user("deleted")
    async with Guest(lab, "deleted") as visitor, Guest(lab, "admin") as admin:
        await visitor.log_in(password)
        await admin.log_in(lab.passwords["admin"])
        spawned = f"/hub/api/users/{visitor.name}/server"
        await visitor.wait_server()
        await admin.call("DELETE", spawned, "/hub/")
        await admin.call("DELETE", "/hub/api/users/deleted", "/hub/")
        assert (await visitor.log_in(password)).status_code == WRONG


@pytest.fixture
def own_lab(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    monkeypatch.setenv("MINICLUSTER_TREE", str(tree))
    cluster = RunningCluster(tmp_path / "data")
    yield cluster
    cluster.kill()


@pytest.mark.full("in the gate the hub runs when a password changes")
async def test_a_password_changed_while_the_hub_was_down_counts_at_its_start(own_lab):
    url = own_lab.url
    async with Visitor(url, "admin") as visitor:
        assert (await visitor.log_in(own_lab.password)).status_code == OK
        assert (await visitor.http.get("/hub/home")).url.path == "/hub/home"
        assert own_lab.end() == 0
        assert run("--data", str(own_lab.data), "--reset-password").returncode == 0
        again = RunningCluster(own_lab.data, port=own_lab.port)
        try:
            assert (await visitor.http.get("/hub/home")).url.path == "/hub/login"
        finally:
            again.end()
            again.kill()


async def test_only_who_manages_all_users_sees_and_uses_the_page_people(lab):
    fields = {"action": "add", "name": "smuggled", "admin": "yes"}
    async with Guest(lab, "grace") as grace, Guest(lab, "stranger") as stranger:
        await grace.log_in(lab.passwords["grace"])
        assert "people" not in (await grace.http.get("/hub/home")).text
        assert (await grace.http.get("/hub/people")).status_code == 403
        token = re.search(r'name="_xsrf"\s+value="([^"]+)"', (await grace.http.get("/hub/password")).text)[1]
        for action in ("add", "reset", "remove", "admin"):
            answer = await grace.http.post("/hub/people", data={**fields, "_xsrf": token, "action": action})
            assert answer.status_code == 403
        assert (await stranger.http.get("/hub/people")).url.path == "/hub/login"
        assert (await stranger.http.post("/hub/people", data=fields)).status_code == 403
    assert "smuggled" not in PasswordFile(lab.cluster.data / "passwords.json").users()


async def test_neither_page_acts_on_a_form_of_another_site_or_for_a_token(lab):
    accounts = PasswordFile(lab.cluster.data / "passwords.json")
    before = accounts.users()
    forms = {
        "/hub/people": {"action": "add", "name": "smuggled", "admin": "yes"},
        "/hub/password": {"present": lab.passwords["admin"], **CHOICE},
    }
    async with Guest(lab, "admin") as admin:
        await admin.log_in(lab.passwords["admin"])
        token = await admin.call("POST", "/hub/api/users/admin/tokens", "/hub/", json={"note": "all"})
        header = {"Authorization": f"token {token['token']}"}
        for path, fields in forms.items():
            assert (await admin.http.post(path, data=fields)).status_code == 403
            assert (await admin.http.post(path, data={**fields, "_xsrf": "x"})).status_code == 403
            async with httpx.AsyncClient(base_url=lab.cluster.url, trust_env=False, timeout=WITHIN_S) as http:
                assert (await http.post(path, data=fields, headers=header)).status_code == 403
    assert accounts.users() == before


async def test_an_admin_cannot_lock_all_admins_out(lab):
    async with Guest(lab, "admin") as admin:
        await admin.log_in(lab.passwords["admin"])
        for fields in ({"action": "remove"}, {"action": "admin", "admin": "no"}):
            answer = await admin.post("/hub/people", name="admin", **fields)
            assert answer.status_code == 400
            assert "ask another admin" in answer.text
        for name in ("../x", "", "a b", "<script>alert(1)</script>"):
            answer = await admin.post("/hub/people", action="add", name=name)
            assert answer.status_code == 400
            assert "<script>alert(1)" not in answer.text


@pytest.mark.full("the gate has it by the page Password")
async def test_an_admins_own_new_password_ends_only_the_other_browsers(lab):
    async with Guest(lab, "admin") as admin, Guest(lab, "second") as here, Guest(lab, "second") as there:
        await admin.log_in(lab.passwords["admin"])
        page = await admin.post("/hub/people", action="add", name="second", admin="yes")
        password = re.search(r'id="new-password"[^>]*>([a-z-]+)<', page.text)[1]
        for browser in (here, there):
            assert (await browser.log_in(password)).status_code == OK
        page = await here.post("/hub/people", action="reset", name="second")
        assert 'id="new-password"' in page.text
        assert page.headers["cache-control"] == "no-store"
        assert not await is_out(here)
        assert await is_out(there)


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "///evil.example",
        r"\\evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
    ],
)
async def test_the_login_leads_to_no_other_site(lab, target):
    async with Guest(lab, "grace") as grace:
        form = await grace.form()
        fields = {**form, "password": lab.passwords["grace"]}
        answer = await grace.http.post(
            "/hub/login", params={"next": target}, data=fields, follow_redirects=False
        )
    assert answer.status_code == 302
    where = httpx.URL(answer.headers["location"])
    assert where.is_relative_url or where.host == "127.0.0.1"
    assert not answer.headers["location"].startswith(("//", "/\\", "\\"))
