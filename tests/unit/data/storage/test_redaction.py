"""Secrets are removed from text, and detected in the chain of causes of an error."""

from __future__ import annotations

import pytest

from cloudload.data.storage.redaction import contains_secrets, redact
from cloudload.errors import StoreError

SECRET_KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYSECRET"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/token=1/sig=2/key?a=b", "s3://bucket/token=1/sig=2/key?a=b"),
        (
            "abfs://container@account.dfs.core.windows.net/key",
            "abfs://container@account.dfs.core.windows.net/key",
        ),
        ("oci://bucket@namespace/key", "oci://bucket@namespace/key"),
        ("sftp://user:p@ss@host/key", "sftp://host/key"),
        ("https://token@host/key?sig=abc", "https://host/key"),
        (
            "cannot reach http://host/o?alt=media&X-Goog-Signature=abc: refused",
            "cannot reach http://host/o refused",
        ),
        ("with url: /b?a=1&X-Amz-Signature=abc&b=2", "with url: /b?a=1&X-Amz-Signature=…&b=2"),
        (
            "AccountName=x;AccountKey=abc==;EndpointSuffix=y",
            "AccountName=x;AccountKey=…;EndpointSuffix=y",
        ),
        ("Authorization: Bearer abc.def-ghi", "Authorization: …"),
        ("invalid_grant: Invalid JWT signature", "invalid_grant: Invalid JWT signature"),
    ],
)
def test_a_text_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_secret_of_the_environment_is_shown_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCS_SECRET", SECRET_KEY)
    assert redact(f"signed with {SECRET_KEY}") == "signed with $GCS_SECRET"
    assert redact("of wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYSECRET") == "of $GCS_SECRET"


def test_a_secret_is_found_in_what_led_to_an_error() -> None:
    outer = StoreError("outer")
    outer.__cause__ = ValueError("plain")
    assert not contains_secrets(outer)
    outer.__cause__.__context__ = ValueError("sftp://user:password@host")
    assert contains_secrets(outer)
