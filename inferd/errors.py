"""Every error inferd raises on purpose, in one tree. No HTTP library here; one renderer elsewhere.

InferdError
  RequestError            400 invalid_request_error
    InvalidBody, InvalidField, UnknownParameter, ContextLengthExceeded, UnsupportedFeature
    UnknownModel 404, NotFound 404, UnknownUrl 404, MethodNotAllowed 405, BodyTooLarge 413,
    BodyTimeout 408, Conflict 409, FileQuotaExceeded 403, RangeNotSatisfiable 416
  AuthError               401 MissingKey, InvalidKey; 403 ModelNotAllowed
  LimitError              429 RateLimited, BudgetSpent, QueueFull, WaitTooLong, Shed
  UpstreamError           NoWorker 503, WorkerUnreachable 502, InvalidAnswer 502,
                          WorkerRejected 400, WorkerFull 429, WorkerFailedMidStream 502,
                          WorkerTimeout 504, ShuttingDown 503
  DeadlineExceeded        504
  FileStoreError          503
  InternalError           500
  ConfigError, StartError, StorageError, ProvisionError   an operator's errors, never a client's
"""

from __future__ import annotations

from typing import ClassVar


class InferdError(Exception):
    """Base. Class attributes say how a client sees it; instances carry what happened.

    `retryable`: dispatch may place the request on another worker while the client has seen nothing.
    `client_retry`: False sends `x-should-retry: false`, for SDKs retry every 409, 429 and 5xx.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    source: ClassVar[str] = "gateway"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        client_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code
        self.param = param
        self.retry_after_s = retry_after_s
        self.client_retry = client_retry

    default_code: ClassVar[str | None] = None


class RequestError(InferdError):
    """The client's request cannot be served as it is; sending it again changes nothing."""

    status = 400
    type = "invalid_request_error"


class InvalidBody(RequestError):
    """The body as a whole: not JSON, not an object, wrong content type."""


class InvalidField(RequestError):
    """One field: `param` is its path, the message names it and says what is allowed."""

    default_code = "invalid_value"


class UnknownParameter(RequestError):
    default_code = "unknown_parameter"


class UnsupportedFeature(RequestError):
    """Known to the public API, not served here: refused by name, never ignored."""

    default_code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """`room_tokens`: what the prompt leaves of the context, if the engine has told."""

    default_code = "context_length_exceeded"

    def __init__(
        self, message: str, *, param: str | None = None, room_tokens: int | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.room_tokens = room_tokens

    def about(self, param: str) -> ContextLengthExceeded:
        """The same, said of the parameter that the prompt came in."""
        message = self.message.replace("messages", param)
        return ContextLengthExceeded(message, param=param, room_tokens=self.room_tokens)


class UnknownModel(RequestError):
    status = 404
    default_code = "model_not_found"


class NotFound(RequestError):
    status = 404


class UnknownUrl(RequestError):
    status = 404
    default_code = "unknown_url"


class MethodNotAllowed(RequestError):
    status = 405
    default_code = "method_not_supported"

    def __init__(self, message: str, *, allow: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTooLarge(RequestError):
    status = 413
    default_code = "request_too_large"


class BodyTimeout(RequestError):
    """The client was too slow sending its body."""

    status = 408
    default_code = "request_timeout"


class Conflict(RequestError):
    status = 409

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, code=code, param=param, client_retry=False)


class FileQuotaExceeded(RequestError):
    """Trying again changes nothing before files are deleted or expire."""

    status = 403
    default_code = "file_quota_exceeded"


class RangeNotSatisfiable(RequestError):
    """A range that begins behind the end of what has `size` bytes."""

    status = 416
    default_code = "range_not_satisfiable"

    def __init__(self, message: str, *, size: int) -> None:
        super().__init__(message)
        self.size = size


class AuthError(InferdError):
    status = 401
    type = "invalid_request_error"


class MissingKey(AuthError):
    """No key at all: the contract's 401 with a null code."""


class InvalidKey(AuthError):
    """Unknown, expired or revoked: one answer for all, so that nothing can be learnt from it."""

    default_code = "invalid_api_key"


class ModelNotAllowed(AuthError):
    status = 403
    default_code = "model_not_allowed"


class LimitError(InferdError):
    """Refused for now. `retry_after_s` is when a try can succeed, in seconds."""

    status = 429


class RateLimited(LimitError):
    """The team's bucket: `limit` is `tokens` or `requests`, which is also the error's type."""

    default_code = "rate_limit_exceeded"

    def __init__(self, message: str, *, limit: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class BudgetSpent(LimitError):
    """The team has spent its month: trying again before the next one changes nothing."""

    type = "insufficient_quota"
    default_code = "insufficient_quota"

    def __init__(self, message: str) -> None:
        super().__init__(message, client_retry=False)


class QueueFull(LimitError):
    default_code = "overloaded"


class WaitTooLong(LimitError):
    default_code = "overloaded"


class Shed(LimitError):
    """Requests of a higher rank have to be refused already."""

    default_code = "overloaded"


class UpstreamError(InferdError):
    """A worker, or the lack of one."""

    status = 502
    source = "worker"
    default_code: ClassVar[str | None] = "worker_unavailable"


class NoWorker(UpstreamError):
    """No worker of the pool is ready, or all drain."""

    status = 503
    source = "gateway"
    retryable = True
    default_code = "no_worker"


class WorkerUnreachable(UpstreamError):
    """Lost before it answered: the request may go to another worker."""

    retryable = True


class InvalidAnswer(UpstreamError):
    """It answered with something that is no answer: another worker may know better."""

    retryable = True


class WorkerFull(UpstreamError):
    """The engine's own queue is full: placed elsewhere first, then the client's 429."""

    status = 429
    retryable = True
    default_code = "overloaded"


class WorkerRejected(UpstreamError):
    """The engine refused the request itself (its 4xx), reworded so that no internals leak."""

    status = 400
    type = "invalid_request_error"
    default_code = None


class WorkerFailedMidStream(UpstreamError):
    """Lost after the client has seen output: never retried, told in the stream."""


class WorkerTimeout(UpstreamError):
    status = 504
    default_code = "upstream_timeout"


class ShuttingDown(UpstreamError):
    """inferd or the worker drains and its grace is over."""

    status = 503
    source = "gateway"


class Preempted(UpstreamError):
    """Interactive requests took a batch request's place: it is queued again, at no charge."""

    status = 503
    source = "gateway"
    retryable = True
    default_code = "overloaded"


class DeadlineExceeded(InferdError):
    status = 504
    default_code = "deadline_exceeded"

    def __init__(self, message: str) -> None:
        super().__init__(message, client_retry=False)


class FileStoreError(InferdError):
    """Where files are kept cannot be reached, read or written; the log says why."""

    status = 503
    default_code = "file_store_unavailable"


class InternalError(InferdError):
    """Our own mistake, seen by a client only as a request id."""

    def __init__(self, message: str) -> None:
        super().__init__(message, client_retry=False)


class ConfigError(InferdError):
    """inferd.toml cannot be used. `problems` are whole lines, each with file and line number."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StartError(InferdError):
    """inferd cannot start here; the message names the cause and the next step."""


class StorageError(InferdError):
    """The database cannot be opened, read or written."""


class ProvisionError(InferdError):
    """The engine or its model is missing or broken. The message ends with the next step."""
