"""Check the connection to the Hugging Face Hub, before its own client is used, and pin commits.

Without a connection, that client would retry for about a minute.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from cloudload.data.storage.advice import describe_proxy
from cloudload.data.storage.redaction import redact
from cloudload.errors import FailureKind, StoreError

_COMMIT = re.compile("[0-9a-f]{40}")

TIMEOUT_S = 5.0  # rarely reached, because without a connection, DNS usually fails in milliseconds


def find_obstacle() -> str | None:
    """Explain why the Hub cannot be reached.

    Return None if it can be reached, or if its client is in offline mode.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except Exception as error:  # from requests or httpx, depending on the client's version
        obstacle = f"{redact(constants.ENDPOINT)} cannot be reached ({_reason(error)})"
        return ". ".join(filter(None, [obstacle, describe_proxy(constants.ENDPOINT)]))
    return None


@functools.cache
def check_connection() -> None:
    """Raise `StoreError` if the Hub cannot be reached. After the first success, do nothing."""
    if obstacle := find_obstacle():
        raise StoreError(
            f"{obstacle}. Check the network connection, or download the files on a machine that "
            "can reach the Hub and pass their folder",
            kind=FailureKind.UNREACHABLE,
        )


def pin_commit(url: str) -> str:
    """The same `hf://` URL at the commit to which its branch or tag leads now.

    Raises the errors of the Hub's client.
    """
    from huggingface_hub import HfApi, HfFileSystem, constants

    path = HfFileSystem().resolve_path(url)
    if _COMMIT.fullmatch(path.revision):
        return url
    found = HfApi().repo_info(path.repo_id, revision=path.revision, repo_type=path.repo_type)
    kind = constants.REPO_TYPES_URL_PREFIXES.get(path.repo_type, "")
    return f"hf://{kind}{path.repo_id}@{found.sha}/{path.path_in_repo}".rstrip("/")


def _reason(error: BaseException) -> str:
    """The operating system's reason for a failed connection, or else the error's class name."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
    return type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
