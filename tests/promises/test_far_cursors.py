"""A loader continues from the farthest cursors that a state may have."""

from __future__ import annotations

from testkit.loaders import make_loader
from testkit.state_fields import table


def test_a_loader_continues_at_document_2_to_the_30_of_every_lane(larger_folder: str) -> None:
    loader = make_loader(larger_folder)
    loader.load_state_dict({**loader.state_dict(), "cursors": table(*[(1 << 30, 0)] * 12)})
    assert len(list(loader.take(2))) == 2
