"""The errors that the emulated API answers with: codes, HTTP statuses and bodies, as Google has them."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

# google.rpc.Code -> HTTP status (google/rpc/code.proto)
HTTP = {1: 499, 2: 500, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501,
        13: 500, 14: 503, 16: 401}  # fmt: skip
NAMES = {1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND",
         6: "ALREADY_EXISTS", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION",
         10: "ABORTED", 11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE",
         16: "UNAUTHENTICATED"}  # fmt: skip
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 429: 8, 499: 1, 500: 13, 501: 12, 503: 14, 504: 4}


class Status(BaseModel):
    """google.rpc.Status, as in operations and queued resources."""

    code: int
    message: str


class ApiError(Exception):
    """An error to answer a request with.

    Args:
        code: a google.rpc.Code.
        message: the message, in Google's wording.
        field: the invalid field of the request, if there is one.
        reason: why, as a `google.rpc.ErrorInfo` in the details names it, if there is one.
    """

    def __init__(self, code: int, message: str, *, field: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.reason = reason

    @property
    def http_status(self) -> int:
        """The HTTP status of the answer."""
        return HTTP.get(self.code, 500)

    def body(self) -> dict[str, JsonValue]:
        """Return the JSON body, with `fieldViolations` if a field is invalid."""
        error: dict[str, JsonValue] = {
            "code": self.http_status,
            "message": self.message,
            "status": NAMES.get(self.code, "UNKNOWN"),
        }
        if self.field:
            violation: dict[str, JsonValue] = {"field": self.field, "description": self.message}
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}]
        if self.reason:
            info: dict[str, JsonValue] = {"reason": self.reason, "domain": "googleapis.com"}
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **info}]
        return {"error": error}


def from_http(status: int, message: str) -> ApiError:
    """Return the error that Google reports with an HTTP status."""
    return ApiError(_CODES.get(status, 13 if status >= 500 else 3), message)


def not_found(name: str) -> ApiError:
    """Return 404: there is no such resource."""
    return ApiError(5, f"Resource '{name}' was not found")


def already_exists(name: str) -> ApiError:
    """Return 409: there is a resource of this name already."""
    return ApiError(6, f"Resource '{name}' already exists")


def invalid(message: str, field: str = "") -> ApiError:
    """Return 400: the request is invalid."""
    return ApiError(3, message, field=field)


def precondition(message: str) -> ApiError:
    """Return 400: the resource's state does not allow the request."""
    return ApiError(9, message)


def unimplemented() -> ApiError:
    """Return 501: the API has no such method, or the emulator does not implement it."""
    return ApiError(12, "Operation is not implemented, or supported, or enabled.")
