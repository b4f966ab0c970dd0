"""HAProxy's configuration, from data to text: pure.

It is written once. What changes afterwards (models, replicas, who may ask) is told through HAProxy's own
socket, so that no reload ever closes a connection. So the backends are there from the start, as slots for
models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from minicluster_hub.serving.routing import SECRET_HEADER
from minicluster_hub.serving.views import ANSWERS

SLOTS, SERVERS = 64, 16
"""Models that HAProxy leads to, and replicas of each. Further ones go through the job service."""
BUFFER_BYTES = 64 << 10
"""A longer request is not repeated at another replica: HAProxy no longer has it."""
BUSY_PER_S, ONE_OF = 300, 10
"""With so many requests in a second, only one of ten is logged, and counts for ten."""
MAPS = ("slots", "allowed", "open", "secrets", "timeouts", "limits")
FRESH, OLD = "fresh", "old"
"""A token's right to ask a model: asked about a moment ago, or to be asked about again."""
RENEW_ONE_OF = 8
"""Of the requests with an old right, one of so many goes to the job service, which renews the right. Were it
forgotten at once, all clients that share a token would go there at the same moment.
"""
_PASSED_ON = "host|content-type|content-length|transfer-encoding|accept|inference-header-content-length"
_KEPT = "content-type|content-length|transfer-encoding|inference-header-content-length|retry-after|vary"

_ERRORS = {
    413: "the request is longer than this model takes",
    503: "no replica of this model answers now; try again",
    504: "the model took longer than its requests may take",
}


@dataclass(frozen=True, slots=True)
class FrontFiles:
    """What HAProxy and the job service share, in a folder that only their user can enter."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "haproxy.cfg"

    @property
    def admin(self) -> Path:
        """The socket on which HAProxy takes commands."""
        return self.folder / "admin.sock"

    @property
    def log(self) -> Path:
        """The socket to which HAProxy writes a line for each request."""
        return self.folder / "log.sock"

    @property
    def service(self) -> Path:
        """The socket on which the job service listens behind HAProxy."""
        return self.folder / "service.sock"

    def map(self, name: str) -> Path:
        return self.folder / f"{name}.map"


def slot_name(slot: int) -> str:
    return f"model-{slot}"


def server_name(server: int) -> str:
    return f"r{server}"


def config(
    files: FrontFiles,
    fds: list[int],
    prefix: str,
    *,
    connections: int,
    threads: int,
    slots: int = SLOTS,
    servers: int = SERVERS,
) -> str:
    """Return haproxy.cfg. fds: of the users' port. prefix: the service's path, with slashes at both ends.

    connections: the most at the same time. threads: of HAProxy.
    """
    answers = f"{prefix}{ANSWERS}"
    model_field = answers.count("/") + 1
    values: dict[str, object] = {
        "connections": connections,
        "threads": threads,
        "servers": servers,
        "buffer_bytes": BUFFER_BYTES,
        "admin": files.admin,
        "log": files.log,
        "service": files.service,
        "binds": "\n".join(f"    bind fd@{fd}" for fd in fds),
        "answers": answers,
        "model_field": model_field,
        "rest_field": model_field + 2,
        "fresh": FRESH,
        "old": OLD,
        "renew_one_of": RENEW_ONE_OF,
        "busy": BUSY_PER_S,
        "one_of": ONE_OF,
        "secret_header": SECRET_HEADER,
        "passed_on": _PASSED_ON,
        "kept": _KEPT,
        "errors": _errors(),
        **{f"{name}_map": files.map(name) for name in MAPS},
    }
    backends = (_BACKEND.format(name=slot_name(slot), **values) for slot in range(1, slots + 1))
    return _HEAD.format(**values) + "".join(backends)


def _errors() -> str:
    """Return the lines with what an asker reads when HAProxy itself refuses or gives up."""
    lines = "    http-error status {} content-type application/json string '{}'"
    return "\n".join(lines.format(status, json.dumps({"error": text})) for status, text in _ERRORS.items())


_HEAD = """\
global
    maxconn {connections}
    nbthread {threads}
    tune.bufsize {buffer_bytes}
    log {log} len 512 format raw local0
    stats socket {admin} mode 600 level admin
    hard-stop-after 15s

defaults
    mode http
    log global
    option dontlognull
    # Pages and notebooks follow streams of small events: each goes on at once.
    option http-no-delay
    timeout connect 2s
    timeout http-request 60s
    timeout http-keep-alive 75s
    # Agents and pages hold connections open; the job service ends what it does not want.
    timeout client 1h
    timeout server 1h
    timeout queue 60s
    retries 3

frontend users
{binds}
    log-format "%[var(txn.model)] %ST %Ta %[var(txn.weight)]"
    acl answers path_beg {answers}
    http-request set-var(txn.model) path,field({model_field},/,2) if answers
    http-request set-var(txn.slot) var(txn.model),map_str({slots_map}) if answers
    acl served var(txn.slot) -m found
    acl asks path,field({rest_field},/) -m str predict v2
    # A browser's cookie needs the page's token, too: the job service looks at these.
    http-request set-var(txn.who) req.fhdr(authorization),sha2(256),hex,concat(:,txn.model) if served asks
    acl is_fresh var(txn.who),map_str({allowed_map}) -m str {fresh}
    acl is_old var(txn.who),map_str({allowed_map}) -m str {old}
    acl is_open var(txn.model),map_str({open_map}) -m found
    use_backend %[var(txn.slot)] if served asks is_fresh
    use_backend %[var(txn.slot)] if served asks is_old !{{ rand({renew_one_of}) eq 0 }}
    use_backend %[var(txn.slot)] if served asks is_open
    default_backend service

backend service
    http-request set-log-level silent
    option abortonclose
    # It limits requests by address; the hub's proxy has told it already.
    option forwardfor if-none
    server service unix@{service}
"""

_BACKEND = """
backend {name}
    balance leastconn
    option redispatch 1
    # A replica that died, or that takes no more requests: another one gets the request, if HAProxy has all of
    # it. So a connection that a replica closes while it is reused does no harm, and none need be opened anew.
    retry-on conn-failure empty-response 503
    http-reuse always
    option srvtcpka
    srvtcpka-idle 1s
    srvtcpka-intvl 1s
    srvtcpka-cnt 2
    http-request set-var(txn.weight) int(1)
    http-request set-var(txn.weight) int({one_of}) if {{ be_sess_rate gt {busy} }}
    http-request set-log-level silent if {{ be_sess_rate gt {busy} }} !{{ rand({one_of}) eq 0 }}
    http-request set-var(txn.limit) var(txn.model),map_str_int({limits_map},1048576)
    http-request deny deny_status 413 if {{ req.body_size,sub(txn.limit) gt 0 }}
    http-request wait-for-body time 30s if METH_POST
    http-request set-timeout server var(txn.model),map_str_int({timeouts_map},30000)
    # The asker's token, cookies and address are nothing for the owner's code.
    http-request del-header ^(?!({passed_on})$) -m reg
    http-request set-header {secret_header} %[var(txn.model),map_str({secrets_map})]
    http-request set-path /%[path,field({rest_field},/,0)]
    # The owner's code answers at the hub's address: its answer is data, and can set nothing there.
    http-response del-header ^(?!({kept})$) -m reg
    acl is_data res.hdr(content-type) -m beg application/json application/octet-stream
    http-response set-header Content-Type application/octet-stream unless is_data
    http-response set-header Content-Security-Policy "default-src 'none'; sandbox; frame-ancestors 'none'"
    http-response set-header X-Content-Type-Options nosniff
    http-response set-header Cache-Control no-store
{errors}
    # A node without power closes no connection.
    default-server tcp-ut 3s
    server-template r 1-{servers} 127.0.0.1:1 disabled
"""
