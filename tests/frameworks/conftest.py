"""One small dataset for all frameworks."""

from __future__ import annotations

import pytest
from small import write_documents


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_documents(tmp_path_factory.mktemp("mds"))
