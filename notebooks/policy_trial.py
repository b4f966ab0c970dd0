"""For schedulearn.ipynb and placement.ipynb: chooses scheduling policies for a while, then the former one.

A process of its own sets the former one back, as soon as the notebook closes its end of a pipe. A kernel that
ends closes it, too. So an error, an interrupt, a restart or a killed kernel leaves no policy behind. Only if
the whole machine goes down, an administrator has to choose the former one again, on the page Queue.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

_ANSWERS_WITHIN_S = 60.0
_KEEPS_TRYING_S = 60.0


def active() -> dict[str, Any]:
    """Return the active choice: its policy, its placement, and the policy's options."""
    answer = httpx.get(_url(), headers=_headers(_own_token()), timeout=_ANSWERS_WITHIN_S, trust_env=False)
    return answer.raise_for_status().json()["in_force"]["choice"]


def choose(choice: Mapping[str, Any], token: str = "") -> None:
    """Activate a policy with its placement; running jobs keep their nodes.

    token: with the scope custom:minicluster:policy; "": that of this notebook server. Raises PermissionError
    if the token lacks the scope, httpx.HTTPError.
    """
    answer = _put(_url(), token or _own_token(), choice)
    if answer.status_code == httpx.codes.FORBIDDEN:
        raise PermissionError(answer.json()["error"]["message"])
    answer.raise_for_status()


@contextmanager
def set_back(token: str = "") -> Iterator[None]:
    """Set the policy that is active now back at the end, however the end comes.

    Raises PermissionError before anything is changed, RuntimeError if it was not set back.
    """
    before = active()
    choose(before, token)  # changes nothing, and is refused where the end would be
    keeper = subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what interrupts or ends the kernel is not sent to it
    )
    try:
        # By the pipe: everybody on the machine can read a process's arguments.
        keeper.stdin.write(json.dumps([_url(), token or _own_token(), before]) + "\n")
        keeper.stdin.flush()
        yield
    finally:
        _, errors = keeper.communicate()
        if keeper.returncode != 0:
            former = f"{before['policy']} with the placement {before['placement']}"
            raise RuntimeError(f"{former} was not set back; choose it on the page Queue.\n{errors}")


def _url() -> str:
    return f"{os.environ['MINICLUSTER_URL']}api/policy"


def _own_token() -> str:
    return os.environ["JUPYTERHUB_API_TOKEN"]


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


def _put(url: str, token: str, choice: Mapping[str, Any]) -> httpx.Response:
    return httpx.put(url, json=choice, headers=_headers(token), timeout=_ANSWERS_WITHIN_S, trust_env=False)


def _keep() -> None:
    """Wait until the notebook closes its end of the pipe, or has ended; then set its policy back."""
    url, token, choice = json.loads(sys.stdin.readline())
    sys.stdin.read()
    until = time.monotonic() + _KEEPS_TRYING_S
    while True:
        try:
            _put(url, token, choice).raise_for_status()
            return
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
            if refused or time.monotonic() > until:
                raise
            time.sleep(1)  # the job service may be restarting


if __name__ == "__main__":
    _keep()
