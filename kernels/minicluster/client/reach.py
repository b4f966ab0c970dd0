"""Finds the job service at a hub's address, or explains what answers there instead.

It sends no token: the token may go only to an address where the service has answered.
"""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

from minicluster.client.address import Address, understand
from minicluster.client.certificates import refusal
from minicluster.errors import MiniclusterError
from minicluster.wire import VERSION_HEADER, WIRE_VERSION, ErrorAnswer, ErrorDetail

if TYPE_CHECKING:
    import httpx

_HEALTH = "services/minicluster/health"
_TIMEOUT_S = 10.0
_SHORT_TIMEOUT_S = 3.0


class HubNotFound(MiniclusterError):
    """No Minicluster answers at this address."""


def find_hub(address: Address, tls: ssl.SSLContext | None) -> Address:
    """Return the address at which the service answers. Raises HubNotFound, CertificateUnknown."""
    import httpx

    try:
        answer = _get(address, _HEALTH, tls)
    except httpx.TransportError as error:
        return _by_the_other_scheme(address, tls, error)
    if answer.is_redirect:
        return _followed(address, answer, tls)
    if "wire_version" in _json(answer):
        return address
    raise _not_there(address, answer, tls)


def _get(
    address: Address, path: str, tls: ssl.SSLContext | None, timeout_s: float = _TIMEOUT_S
) -> httpx.Response:
    import httpx

    headers = {VERSION_HEADER: str(WIRE_VERSION), "Accept": "application/json"}
    return httpx.get(address.url + path, headers=headers, timeout=timeout_s, verify=tls or True)


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = json.loads(answer.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _followed(address: Address, answer: httpx.Response, tls: ssl.SSLContext | None) -> Address:
    """Follow a redirect only to https on the same host: the token must not reach another host."""
    sent_to = str(answer.next_request.url if answer.next_request else answer.headers.get("location", ""))
    there = understand(sent_to)
    if there.host != address.host:
        raise HubNotFound(
            f"{address.url} redirects to another machine, {there.host}.",
            f"If that is your hub: %distribute connect {there.url}",
        )
    if address.url.startswith("http:") and there.url.startswith("https:"):
        return find_hub(there, tls)
    raise _not_there(address, answer, tls)


def _by_the_other_scheme(
    address: Address, tls: ssl.SSLContext | None, error: httpx.TransportError
) -> Address:
    """Try https if http was given, never the reverse."""
    unknown = _cause(error, ssl.SSLCertVerificationError)
    if isinstance(unknown, ssl.SSLCertVerificationError):
        raise refusal(address, unknown) from None
    was_https = address.url.startswith("https:")
    other = address.by("http" if was_https else "https")
    if not _nobody_there(error) and _speaks(other, tls):
        if not was_https:
            return find_hub(other, tls)
        raise HubNotFound(
            f"{address.host}, port {address.port}, does not speak https, only http: others on the network "
            "could read your token and your data.",
            f"In a network that you trust: %distribute connect {other.url}",
        ) from None
    raise HubNotFound(f"{address.url} does not answer: {_why(address, error)}.", _what_to_do(error)) from None


def _nobody_there(error: httpx.TransportError) -> bool:
    return any(_cause(error, kind) for kind in (socket.gaierror, ConnectionRefusedError))


def _speaks(address: Address, tls: ssl.SSLContext | None) -> bool:
    import httpx

    try:
        _get(address, _HEALTH, tls, _SHORT_TIMEOUT_S)
    except httpx.TransportError as error:
        return _cause(error, ssl.SSLCertVerificationError) is not None
    return True


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Return the first error of this type in the chain of causes."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _why(address: Address, error: Exception) -> str:
    import httpx

    if _cause(error, socket.gaierror):
        return f"there is no machine named {address.host}"
    if _cause(error, ConnectionRefusedError):
        return f"nothing listens at port {address.port} of {address.host}"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {_TIMEOUT_S:.0f} seconds"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _what_to_do(error: Exception) -> str:
    if _cause(error, socket.gaierror):
        return "Check the name for a typo. Some labs' names resolve only in their own network or VPN."
    return "Does the browser open it? If not: does the hub run, is the port right, is a VPN needed?"


def _error(answer: httpx.Response) -> ErrorDetail | None:
    """Return the job service's error; None for any other answer."""
    try:
        return ErrorAnswer.model_validate_json(answer.content).error
    except ValueError:
        return None


def _not_there(address: Address, answer: httpx.Response, tls: ssl.SSLContext | None) -> MiniclusterError:
    """Return an error that says what answers at the address instead of the service."""
    said = _error(answer)
    if said is not None:
        return HubNotFound(f"The cluster at {address.url} says: {said.message}.", said.hint)
    hub = _json(_get(address, "hub/api/", tls)).get("version")
    if not isinstance(hub, str):
        return HubNotFound(
            f"There is no JupyterHub at {address.url} (HTTP {answer.status_code}).",
            "Copy the address from the browser where you log in, for example https://lab.example.org/hub/home.",
        )
    if answer.status_code in (502, 503, 504):
        return HubNotFound(
            f"The hub at {address.url} answers, but its job service does not (HTTP {answer.status_code}).",
            "Try again in a moment, then ask the hub's admin.",
        )
    return HubNotFound(
        f"There is a JupyterHub {hub} at {address.url}, but Minicluster's job service is not part of it.",
        "Is this the right hub? Its admin adds the service: see `configure` in jupyterhub_config.py.",
    )
