"""Make the links of README.md absolute in the package's description, as PyPI has no other files.

    [limits](docs/limits.md)  ─►  [limits](URL/blob/v0.1.0/docs/limits.md)
    ![chart](chart.svg)       ─►  ![chart](URL/raw/v0.1.0/chart.svg)

URL is `Repository` in `[project.urls]` of pyproject.toml. Without it, only the texts remain.
Hatchling calls `CustomMetadataHook` when it builds the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # outside a build
    MetadataHookInterface = object

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s]+)\)")
"""A relative link or image. Its text may have brackets, such as those of an image."""


def describe(readme: str, url: str | None, version: str) -> str:
    """Return a README with absolute links to the repository at `url`, or without them."""

    def replace(found: re.Match[str]) -> str:
        mark, text, path = found.groups()
        text = _LINK.sub(replace, text)
        kind = "raw" if mark else "blob"
        return f"{mark}[{text}]({url.rstrip('/')}/{kind}/v{version}/{path})" if url else text

    return _LINK.sub(replace, readme)


class CustomMetadataHook(MetadataHookInterface):  # type: ignore[misc]
    """Sets the package's description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description to the metadata of pyproject.toml."""
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        url = metadata.get("urls", {}).get("Repository")
        text = describe(readme, url, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
