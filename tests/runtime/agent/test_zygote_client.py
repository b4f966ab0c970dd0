"""The agent's side of the zygote protocol, with a simulated zygote, including a slow one."""

from __future__ import annotations

import json
import signal
import socket
import subprocess

from minicluster.runtime.agent.zygote_client import ZygoteClient

from ...patience import eventually


async def test_a_child_that_is_not_wanted_any_more_ends_once_it_is_made() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote, made = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    client = ZygoteClient(zygote, ours)
    client.listen(lambda: None)
    child = client.fork("store-1", {"kind": "store"}, [])
    client.kill(child)
    theirs.send(json.dumps({"event": "forked", "name": "store-1", "pid": made.pid}).encode())
    await eventually(lambda: made.poll() is not None)
    assert made.returncode == -signal.SIGKILL
    client.close()
    theirs.close()
