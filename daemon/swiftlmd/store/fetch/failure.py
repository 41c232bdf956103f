"""Every way a pull fails, in one line that says what is missing and who must act."""

from __future__ import annotations

from enum import StrEnum

import httpx2
from huggingface_hub import errors, get_token

_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class Reason(StrEnum):
    """Travels to the daemon; each has its own HTTP status there."""

    GATED = "gated"
    BAD_TOKEN = "bad_token"
    FORBIDDEN = "forbidden"
    ABSENT = "absent"
    NO_REVISION = "no_revision"
    NO_WEIGHTS = "no_weights"
    UNREACHABLE = "unreachable"
    STALLED = "stalled"
    BUSY = "hub_busy"
    CORRUPT = "corrupt"
    DISK_FULL = "disk_full"
    UNSAFE = "unsafe_name"
    FAILED = "failed"


class FetchFailed(Exception):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def passes_by_itself(error: Exception) -> bool:
    """Whether waiting and asking again can help."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in _TRY_AGAIN
    if isinstance(error, httpx2.TransportError):
        return not isinstance(error, httpx2.UnsupportedProtocol | httpx2.ProxyError)
    # the client's own complaint about a body that ended early or went on too long
    return isinstance(error, OSError) and "Consistency check" in str(error)


def is_unreachable(error: Exception) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def retry_after_s(error: Exception) -> float:
    """What the hub asked for, at most a minute; 0 when it asked for nothing."""
    if not isinstance(error, errors.HfHubHTTPError):
        return 0.0
    text = error.response.headers.get("Retry-After", "")
    return min(60.0, float(text)) if text.isdigit() else 0.0


def explained(error: Exception, repo: str, revision: str, endpoint: str) -> FetchFailed:
    """The hub client's exception in our words."""
    if isinstance(error, errors.HfHubHTTPError):
        return _refusal(error, repo, revision, endpoint)
    if is_unreachable(error):
        return FetchFailed(
            Reason.UNREACHABLE,
            f"{endpoint} cannot be reached ({_short(error)}); connect and try again",
        )
    if isinstance(error, httpx2.ProxyError):
        return FetchFailed(Reason.UNREACHABLE, f"the proxy refused: {_short(error)}")
    if isinstance(error, httpx2.TimeoutException):
        return FetchFailed(
            Reason.STALLED, f"{endpoint} stopped answering while sending '{repo}'; pull again"
        )
    if isinstance(error, OSError) and error.errno == 28:  # ENOSPC
        return FetchFailed(Reason.DISK_FULL, f"the disk filled up while '{repo}' was arriving")
    return FetchFailed(Reason.FAILED, f"'{repo}' could not be fetched: {_short(error)}")


def _refusal(error: errors.HfHubHTTPError, repo: str, revision: str, endpoint: str) -> FetchFailed:
    status = error.response.status_code
    page = f"{endpoint}/{repo}"
    if isinstance(error, errors.GatedRepoError):
        return FetchFailed(Reason.GATED, f"'{repo}' is gated: {_gate_advice(page)}")
    if isinstance(error, errors.RevisionNotFoundError):
        return FetchFailed(Reason.NO_REVISION, f"'{repo}' has no revision '{revision}'")
    if status == 401 and "Invalid credentials" in _said(error):
        return FetchFailed(
            Reason.BAD_TOKEN,
            f"{endpoint} refused the access token; set a valid HF_TOKEN or run `hf auth login`",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "" if get_token() else "; if it is private, set HF_TOKEN"
        return FetchFailed(Reason.ABSENT, f"{endpoint} has no model '{repo}'{hint}")
    if status == 401:
        return FetchFailed(Reason.BAD_TOKEN, f"{endpoint} wants an access token for '{repo}'")
    if status == 403:
        return FetchFailed(
            Reason.FORBIDDEN,
            f"the access token may not read '{repo}'; give it that right at {endpoint}",
        )
    if status == 429:
        return FetchFailed(
            Reason.BUSY, f"{endpoint} limits our requests (429); pull again in a few minutes"
        )
    if status >= 500:
        return FetchFailed(Reason.BUSY, f"{endpoint} is out of order ({status}); pull again later")
    return FetchFailed(Reason.FAILED, f"{endpoint} answered {status} for '{repo}'")


def _gate_advice(page: str) -> str:
    if get_token():
        return f"the token's account has no access yet; accept the terms at {page}"
    return f"accept the terms at {page}, then set HF_TOKEN or run `hf auth login`"


def _said(error: errors.HfHubHTTPError) -> str:
    return str(error.response.headers.get("X-Error-Message", "")) + str(error)


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
