"""Random requests on every route of the OpenAPI document: none crashes, blocks or fills the service."""

import asyncio
import gc
import threading
from contextlib import closing

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from minicluster_hub.support.rates import Rate

from ...patience import WITHIN_S

REQUESTS_PER_ROUTE = 60
READ_BYTES = 1 << 16
NO_LIMIT = Rate(per_s=1e6, burst=1e6)
NOT_WAITED_FOR = {"/api/tasks/orders", "/api/nodes/orders"}
"""Long-polled routes, which may never answer."""


class Guesser:
    """Sends valid and invalid requests with every kind of token."""

    def __init__(self, url, tokens, known):
        self.url, self.tokens, self.known = url.rstrip("/"), tokens, known
        import requests  # of schemathesis, which only `./test full` installs

        self.session = requests.Session()
        self.gone = requests.ConnectionError
        self.faults = []
        self.sent = 0

    def send(self, case, token):
        """Send a request; record forbidden outcomes."""
        case.headers = {**(case.headers or {}), **({"Authorization": token} if token else {})}
        try:
            request = {**case.as_transport_kwargs(base_url=self.url), "stream": True, "timeout": WITHIN_S}
            answer = self.answer_to(request)
        except (UnicodeError, ValueError):
            return  # the client library itself refuses it
        except OSError as error:
            self.faults.append(f"{error!r:.200} {request!r:.600}")
            return
        self.sent += 1
        with closing(answer):
            self.look_at(answer, f"{case.method} {answer.request.url} {answer.request.body!r:.500}")

    def answer_to(self, request):
        """Send a request on an open connection; reconnect if the service closed it after a refusal."""
        try:
            return self.session.request(**request)
        except self.gone:
            self.session.close()
            return self.session.request(**request)

    def look_at(self, answer, what):
        if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            return
        content = answer.raw.read(READ_BYTES, decode_content=True)
        if answer.status_code >= 500 and answer.status_code not in (501, 503, 507):
            self.faults.append(f"{answer.status_code} {what}: {content[:500]}")

    def tries(self, operation):
        """Send many requests to one route."""

        @given(
            case=operation.as_strategy(),
            token=st.sampled_from(self.tokens),
            ids=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in self.known.items()}),
        )
        @settings(
            max_examples=REQUESTS_PER_ROUTE,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def one(case, token, ids):
            there = case.path_parameters or {}
            case.path_parameters = {**there, **{name: ids[name] for name in there if ids.get(name)}}
            self.send(case, token)

        one()


def weight():
    """Return what must not grow with requests: (open files, threads)."""
    gc.collect()
    return psutil.Process().num_fds(), threading.active_count()


@pytest.mark.full("some thousand requests")
@pytest.mark.timeout(900)
async def test_no_request_breaks_the_service(start_api, caplog):
    schemathesis = pytest.importorskip("schemathesis", reason="its package comes with ./test full")

    async with start_api(user_rate=NO_LIMIT, refusal_s=0.0) as api:
        job, agents, _ = await api.running("ada")
        waiting = await api.submit("ada", nodes=2)
        document = (await api.client().get("api/openapi.json")).json()
        tokens = [f"token {name}-token" for name in ("root", "ada", "bob", "spawner")]
        tokens += [agents[0].http.headers["Authorization"], "keeper node-1.no", None]
        known = {
            "job_id": [str(job.id), str(waiting.id), None],
            "owner": ["ada", None],
            "node": ["node-1", None],
        }
        guesser = Guesser(api.url, tokens, known)
        schema = schemathesis.openapi.from_dict(document)
        before = None
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path in NOT_WAITED_FOR:
                continue
            await asyncio.to_thread(guesser.tries, operation)
            before = before or weight()
        guesser.session.close()
        files, threads = weight()
        assert not guesser.faults, "\n".join(guesser.faults[:20])
        assert guesser.sent > 40 * REQUESTS_PER_ROUTE
        assert not [record for record in caplog.records if record.exc_info], caplog.text[-3000:]
        assert files < before[0] + 50
        assert threads < before[1] + 20
        assert (await api.ask("GET", f"api/jobs/{waiting.id}")).status_code == 200
