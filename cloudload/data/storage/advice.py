"""What to do after a failed request: advice by the kind of the failure, the store, and the proxy.

cannot read s3://b/k (1 attempt, 0.2 s): ClientError: … AccessDenied …     from `retries`
The store or a proxy denied access. Check …                                by the kind
If the bucket is public, …                                                 from `Backend.hint`
Requests go through the proxy http://proxy:3128 (from HTTP_PROXY) …        from the environment
"""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from cloudload.data.storage import clients, urls
from cloudload.data.storage.base import Backend
from cloudload.data.storage.redaction import redact
from cloudload.errors import FailureKind

_ADVICE = {
    FailureKind.MISSING_OBJECT: "The object does not exist. Check the location",
    FailureKind.MISSING_BUCKET: "The bucket does not exist. Check the location",
    FailureKind.DENIED: "The store or a proxy denied access. Check the credentials and their "
    "permissions, and your proxy's login if you use one",
    FailureKind.NO_CREDENTIALS: "The request was anonymous, and the store refused it",
    FailureKind.BAD_CREDENTIALS: "The credentials were rejected or could not be loaded. Check the "
    "credentials",
    FailureKind.EXPIRED_CREDENTIALS: "The credentials have expired. Get new ones and run again",
    FailureKind.WRONG_CLOCK: "This machine's clock differs too much from the store's. Correct "
    "the clock",
    FailureKind.WRONG_REGION: "The bucket is in a different region. Set AWS_DEFAULT_REGION to the "
    "bucket's region",
    FailureKind.UNTRUSTED: "This machine does not trust the store's certificate. If its CA is "
    "private, set AWS_CA_BUNDLE (s3://) or REQUESTS_CA_BUNDLE (gs:// and https://) to a file that "
    "contains the CA's certificate",
    FailureKind.BUSY: (
        "The store had an internal error or was too busy. Run again. If the error persists, send "
        "fewer requests at a time, for example by using fewer workers"
    ),
    FailureKind.REFUSED: (
        "{Store} refused the connection. Check that the server is running, and that the host and "
        "the port are correct"
    ),
    FailureKind.UNKNOWN_HOST: (
        "The host name of {store} could not be resolved. Check its spelling and this machine's DNS "
        "settings"
    ),
    FailureKind.TIMED_OUT: (
        "{Store} did not answer in time. Check the network and the location, and run again. If the "
        "connection is slow, raise deadline_s in the loader's Retry"
    ),
    FailureKind.UNREACHABLE: "{Store} could not be reached, or broke the connection. Check the "
    "network and the location, and run again",
    FailureKind.OTHER: "Check the location and the store's error message",
}

_REFUSED = (FailureKind.DENIED, FailureKind.NO_CREDENTIALS)

_URL_IN_ERROR = re.compile(r"https?://[^/\s\"']+")


def advise(
    backend: Backend, url: str, error: BaseException, kind: FailureKind, *, is_write: bool = False
) -> str:
    """Return the advice for a request that finally failed."""
    hint = backend.hint(url, error, kind)
    general = advise_by_kind(kind, name_server(backend, url, error))
    if is_write and kind is FailureKind.MISSING_OBJECT:
        general = "Nothing can be stored there. Check the location"
    advice = [hint] if hint and kind is FailureKind.OTHER else [general, *filter(None, [hint])]
    proxy = describe_proxy(backend.describe_endpoint(url))
    may_be_proxy = is_from_proxy(error) or urls.scheme_of(url) in urls.BUCKET_SCHEMES
    if proxy and may_be_proxy and (kind.is_of_connection or kind in _REFUSED):
        advice.append(proxy)
    return ". ".join(advice)


def advise_by_kind(kind: FailureKind, server: str) -> str:
    """Return the advice for a kind of failure. `server` is as `name_server` names it."""
    server = server or "the store"
    capitalized = server.replace("the ", "The ", 1) if server.startswith("the ") else server
    return _ADVICE[kind].format(store=server, Store=capitalized)


def name_server(backend: Backend, url: str, error: BaseException) -> str:
    """Name the server that an error is about: a proxy, or the store. Return "" if it is unclear.

    An error may also be about another server, such as one that issues tokens.
    """
    endpoint = backend.describe_endpoint(url)
    if is_from_proxy(error):
        return _name_proxy(endpoint)
    host = urlsplit(endpoint.partition(" ")[0]).hostname
    texts = [str(each) for each in clients.list_causes(error)]
    if not host or not any(host in text for text in texts):
        return ""
    # a request may go to a host named after the bucket
    asked = [found for text in texts for found in _URL_IN_ERROR.findall(text)]
    of_bucket = [each for each in asked if (urlsplit(each).hostname or "").endswith(f".{host}")]
    name = redact(endpoint)
    return f"{redact(of_bucket[0])}, the bucket's host name at {name}," if of_bucket else name


def is_from_proxy(error: BaseException) -> bool:
    """Whether a client says that an error is about a proxy."""
    kinds = [kind.__name__ for each in clients.list_causes(error) for kind in type(each).__mro__]
    return any("Proxy" in name for name in kinds) or "407 Proxy" in str(error)


def describe_proxy(endpoint: str) -> str:
    """Say that requests to an endpoint go through a proxy. Return "" if they do not."""
    name, host = _name_proxy(endpoint), urlsplit(endpoint.partition(" ")[0]).hostname
    if not name or not host or proxy_bypass(host):
        return ""
    return f"Requests go through {name}. To connect directly, add {host} to NO_PROXY"


def _name_proxy(endpoint: str) -> str:
    """Name the proxy for the scheme of an endpoint, and its environment variable."""
    for name in (f"{urls.scheme_of(endpoint)}_proxy", "all_proxy"):
        for variable in (name, name.upper()):  # clients prefer lower case
            if value := os.environ.get(variable):
                return f"the proxy {redact(value)} (from {variable})"
    return ""
