"""All errors that answer a request, and the one place that turns an exception into such an answer."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil

from pydantic import ValidationError
from tornado.web import HTTPError

from minicluster.wire import ErrorAnswer, ErrorDetail
from minicluster_hub.datasets.manager import DataSetRefused
from minicluster_hub.images.catalogue import ImageNotAllowed
from minicluster_hub.notices.errors import AddressRefused
from minicluster_hub.policy.choices import ChoiceRefused
from minicluster_hub.scheduling.admission import JobRefused
from minicluster_hub.scheduling.servers import ServerRefused
from minicluster_hub.storage.quotas import OverQuota
from minicluster_hub.store import NotLeading, StoreFull, StoreUnavailable
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.usage.reservations import ReservationRefused

_MOST_PROBLEMS = 20
_PLACE_CHARS = 80

_STATUSES: dict[type[Exception], int] = {
    AddressRefused: 422,
    ChoiceRefused: 422,
    DataSetRefused: 422,
    ImageNotAllowed: 422,
    JobRefused: 422,
    ReservationRefused: 422,
    ServerRefused: 409,
}
_CODES = {AddressRefused: "address_refused", ImageNotAllowed: "image_not_allowed"}
"""Codes of errors without a `code`."""
REFUSALS = tuple(_STATUSES)
"""Handlers need not catch these: their messages are written for users."""


class ApiError(Exception):
    """An answer with a status of 400 or more."""

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.detail = ErrorDetail(code=code, message=message, hint=hint)


def unknown_job(job_id: int | str) -> ApiError:
    """Return the same answer for a missing job and for another user's job."""
    return ApiError(404, "unknown_job", f"there is no job {job_id} of yours", "GET api/jobs lists your jobs")


def scope_missing(
    scope: str,
    hint: str = "use your notebook server's own token, or make one with this scope at the hub's page Token",
) -> ApiError:
    return ApiError(403, "scope_missing", f"the token lacks the scope {scope}", hint)


def too_large(what: str, limit_bytes: int) -> ApiError:
    return ApiError(
        413,
        "too_large",
        f"{what} is over this cluster's limit of {limit_bytes} bytes",
        "make it smaller, or ask an admin to raise the limit",
    )


def too_many(code: str, message: str, hint: str, wait_s: float) -> ApiError:
    return ApiError(429, code, message, hint, retry_after_s=max(1, ceil(min(wait_s, 60.0))))


def disk_full() -> ApiError:
    return ApiError(
        507,
        "disk_full",
        "the job service's disk is full, except for the reserve of its database",
        "running jobs go on; ask an admin to free some space, then try again",
    )


def invalid_body(error: ValidationError) -> ApiError:
    """Name each wrong field, and why it is wrong."""
    unknown, wrong = [], []
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    for problem in problems[:_MOST_PROBLEMS]:
        place = ".".join(str(part)[:_PLACE_CHARS] for part in problem["loc"]) or "body"
        if problem["type"] == "extra_forbidden":
            unknown.append(place)
        else:
            wrong.append(f"{place}: {problem['msg']}")
    if len(problems) > _MOST_PROBLEMS:
        wrong.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    if unknown:
        known = f"unknown field {', '.join(unknown)}"
        return ApiError(422, "unknown_field", "; ".join([known, *wrong]), "api/openapi.json lists the fields")
    return ApiError(422, "invalid", "; ".join(wrong), "api/openapi.json lists the fields")


def api_error(error: BaseException | None, status: int) -> ApiError:
    """Return the answer for any exception. The text of an unexpected one is only in the service's log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OverQuota):
        return ApiError(413, error.code, error.message, error.hint)
    if isinstance(error, REFUSALS):
        return _refusal(error)
    if isinstance(error, NotLeading):
        return ApiError(503, "not_leading", "another job service has just taken the lead", "try again")
    if isinstance(error, StoreFull) or (isinstance(error, NotKept) and error.full):
        return disk_full()
    if isinstance(error, StoreUnavailable):
        return ApiError(503, "store_unavailable", "the job service's database does not answer", "try again")
    if isinstance(error, NotKept):
        return ApiError(503, "disk", "the job service could not write to its disk", "try again")
    if isinstance(error, HTTPError) and error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return _of_http_error(error)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiError(status, _code(status), HTTPStatus(status).phrase)
    message = "the job service failed on this request; its log has the error"
    return ApiError(500, "internal", message, "try again; if that does not help, tell an admin")


def _refusal(error: BaseException) -> ApiError:
    """Return the answer for one of REFUSALS."""
    status = next(known for kind, known in _STATUSES.items() if isinstance(error, kind))
    code = _CODES.get(type(error)) or getattr(error, "code", "refused")
    return ApiError(getattr(error, "status", status), code, str(error), getattr(error, "hint", ""))


def _of_http_error(error: HTTPError) -> ApiError:
    message = error.log_message or error.reason or HTTPStatus(error.status_code).phrase
    return ApiError(error.status_code, _code(error.status_code), message)


def _code(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")


def answer(error: ApiError) -> str:
    return ErrorAnswer(error=error.detail).model_dump_json()
