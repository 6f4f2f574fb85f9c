"""Remove secrets from URLs and messages: passwords, HTTP queries, tokens, and keys."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

_SECRET_VARIABLES = """
    AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_SECURITY_TOKEN GCS_SECRET
    AZURE_ACCOUNT_ACCESS_KEY AZURE_STORAGE_KEY AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_SAS_TOKEN
    AZURE_STORAGE_CONNECTION_STRING AZURE_CLIENT_SECRET HF_TOKEN HUGGING_FACE_HUB_TOKEN
    DATABRICKS_TOKEN ALIPAN_WEB_REFRESH_TOKEN ALIPAN_ENCRYPT_PASSWORD
"""

_LEAST_SECRET_CHARACTERS = 8  # a shorter value could match a part of an ordinary word

_USER_AND_PASSWORD = re.compile(r"(//|\w:/)[^/\s'\"<>]*:[^/\s'\"<>]*@")

_HTTP_USER = re.compile(r"(https?:/+)[^/?\s'\"<>]*@")

_HTTP_QUERY = re.compile(r"(https?:/+[^?\s'\"<>]*)\?[^\s'\"<>]*")

# match a field only where a name can begin, because `s3://bucket/sig=1/` is a folder; in a quoted
# URL, a name can begin after %3F (?) or %26 (&)
_SECRET_FIELD = re.compile(
    r"""(?ix) (?: (?<![\w/-]) | (?<=%3f) | (?<=%26) ) (
        x-(?:amz|goog)-(?:signature|credential|security-token) | sig | signature
        | googleaccessid | awsaccesskeyid
        | (?:(?:access|refresh|id|session|sas|security|auth|hf|api)_?)?token
        | (?:aws_)?(?:account|shared_?access|secret|secret_?access|private|api)_?key
        | sharedaccesssignature | client_?secret | passw(?:or)?d | secret | credential(?==)
        | authorization
    ) (["']?\s*(?:[=:]|%3d)\s*)
    (?: (["']) (?:(?!\3).)* \3 | (?:(?:bearer|basic)\s+)? [^\s&;,"'<>)}]+ )"""
)


def redact(text: str) -> str:
    """Remove HTTP queries and recognized passwords, tokens and keys from a URL or a message.

    If a known secret environment variable has a value of at least 8 characters, the variable's
    name replaces the value, as in `$HF_TOKEN`.
    """
    for name in _SECRET_VARIABLES.split():
        value = os.environ.get(name, "")
        if len(value) >= _LEAST_SECRET_CHARACTERS:
            text = text.replace(value, f"${name}").replace(quote(value, safe=""), f"${name}")
    text = _HTTP_QUERY.sub(r"\1", _HTTP_USER.sub(r"\1", _USER_AND_PASSWORD.sub(r"\1", text)))
    return _SECRET_FIELD.sub(r"\1\2…", text)


def explain(error: BaseException) -> str:
    """The class of an error and its message on one line, shortened and without secrets."""
    text = redact(" ".join(str(error).split()))[:500].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def contains_secrets(error: BaseException | None) -> bool:
    """Whether the traceback of `error` would show a secret in a message.

    A traceback also shows the messages of the error's causes and contexts.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if redact(str(error)) != str(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
