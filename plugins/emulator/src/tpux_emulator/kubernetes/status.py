"""The errors of the Kubernetes API: a `Status` object for each."""

from __future__ import annotations

from pydantic import ValidationError

from tpux_emulator.protojson import JsonObject

_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
            409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
            503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip
_MESSAGES = {
    401: "Unauthorized",
    403: 'forbidden: User "emulated" cannot do this',
    429: "the server has received too many requests and has asked us to try again later",
    500: "an error on the server has prevented the request from succeeding",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted, but may still be processing the request",
}


class KubeError(Exception):
    """An error to answer a request with.

    Args:
        code: the HTTP status.
        message: the message; empty for the usual one of this status.
        reason: the `reason` of the Status; empty for the usual one of this status.
    """

    def __init__(self, code: int, message: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.code, self.message = code, message or _MESSAGES.get(code, "an injected error")
        self.reason = reason or _REASONS.get(code, "Unknown")

    def body(self) -> JsonObject:
        """Return the Status."""
        status: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        details: JsonObject = {"details": {"retryAfterSeconds": 1}} if self.code == 429 else {}
        return {**status, "reason": self.reason, **details, "code": self.code}


def not_found(plural: str, name: str) -> KubeError:
    """Return 404."""
    return KubeError(404, f'{plural} "{name}" not found')


def invalid(kind: str, name: str, error: ValidationError) -> KubeError:
    """Return 400 for a field that does not exist, as with `fieldValidation=Strict`, and 422 for a bad value."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return KubeError(400, f'strict decoding error: unknown field "{path}"')
    return KubeError(422, f'{kind} "{name}" is invalid: {path}: {first["msg"]}')
