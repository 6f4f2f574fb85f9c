"""What a machine reads a run with: its recipe, cache folder, tokenizer backend, and token lengths.

RunInputs ─► documents, tokenized by the backend
         └─► RunLengths: positions, from token lengths
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cloudload.rows import Choice
from cloudload.run.lengths.ending import Ending, Tails
from cloudload.run.lengths.length_files import CorpusLengths
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.recipe import Recipe


@dataclass(frozen=True)
class RunInputs:
    """All that the documents of a run are read with, on one machine."""

    recipe: Recipe
    cache_root: Path
    backend: Choice
    """The tokenizer backend that encodes documents."""
    lengths: CorpusLengths | None = None
    """The lengths of the samples. Each document that is read is compared with its length."""

    def open_run_lengths(self) -> RunLengths:
        """Open the lengths of the run, which must have lengths."""
        assert self.lengths is not None
        return RunLengths(self.recipe, self.cache_root, self.lengths)

    def open_tails(self, ending: Ending) -> Tails:
        """Open the tails of the run's ending."""
        if self.lengths is None:
            return Tails(self.recipe, self.cache_root, (), ending)
        return self.open_run_lengths().use_ending(ending)
