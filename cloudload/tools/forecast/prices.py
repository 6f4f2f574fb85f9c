"""The price of requests and egress, from a table that users can edit.

    currency: USD
    stores:
      s3: {per_1000_requests: 0.0004, per_gb: {internet: 0.09}}

The name of a store is the scheme of its URLs. Local folders are free.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from cloudload.data.storage.redaction import explain

_GB = 1 << 30
_REQUESTS, _PER_GB = "per_1000_requests", "per_gb"


@dataclass(frozen=True)
class StorePrices:
    """The prices of requests to a store and of egress from it."""

    per_1000_requests: float
    """Price of 1,000 GET requests."""
    per_gb: Mapping[str, float]
    """Price of 2^30 bytes of egress by route, such as `internet`."""

    def cost(self, requests: float, size: float) -> dict[str, float]:
        """Return the cost of requests and of `size` bytes of egress, by route."""
        of_requests = requests / 1000 * self.per_1000_requests
        return {route: of_requests + size / _GB * price for route, price in self.per_gb.items()}


@dataclass(frozen=True)
class Prices:
    """A table of store prices in one currency."""

    currency: str
    stores: Mapping[str, StorePrices]
    """The prices of each store, by the scheme of its URLs."""


def read_prices(path: str | os.PathLike[str] | None = None) -> Prices:
    """Read a price table; by default, the built-in one.

    The file is YAML or JSON. Raises `ValueError` for a file that is not a table, and `OSError` if
    it cannot be read.
    """
    import yaml

    if path is None:
        text, name = (
            (files("cloudload.tools.forecast") / "prices.yaml").read_text("utf-8"),
            "prices.yaml",
        )
    else:
        text, name = Path(path).read_text("utf-8"), os.fspath(path)
    try:
        table = yaml.safe_load(text)
        stores = {scheme: _read_store(store) for scheme, store in table["stores"].items()}
        return Prices(str(table.get("currency", "USD")), stores)
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{name} is not a price table ({_explain(error)}). For each store, set {_REQUESTS!r} "
            f"and {_PER_GB!r}, as in {{stores: {{s3: {{{_REQUESTS}: 0.0004, {_PER_GB}: {{internet: "
            "0.09}}}}"
        ) from error


def _explain(error: Exception) -> str:
    import yaml

    from cloudload.run.streaming.yaml_files import explain_yaml_error

    return explain_yaml_error(error) if isinstance(error, yaml.YAMLError) else explain(error)


def _read_store(store: Mapping[str, Any]) -> StorePrices:
    per_gb = {str(route): _read_price(price) for route, price in store[_PER_GB].items()}
    return StorePrices(_read_price(store[_REQUESTS]), per_gb)


def _read_price(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{value!r} is not a price")
    return float(value)
