"""The report of a compiled selection: documents, bytes, and tokens if they were counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cloudload.data import own_objects
from cloudload.system import counted, reports


@dataclass(frozen=True)
class SelectedTokens:
    """The tokens of the selected documents, by one count of the dataset."""

    lengths: str
    """The location of the lengths, without secrets."""
    selected: int
    """Number of tokens in selected documents."""
    tokens: int
    """Number of tokens in all documents."""


@dataclass(frozen=True)
class SelectReport:
    """The result of compiling a selection."""

    dataset: str
    """The dataset's location, without secrets."""
    name: str
    """The name of the selection."""
    location: str
    """The location of the selection, without secrets."""
    rule: Mapping[str, str]
    """The condition, and digests of the files, by option."""
    default: bool
    """Whether documents that are appended later are selected."""
    samples: int
    """Number of documents."""
    selected: int
    """Number of selected documents."""
    raw_bytes: int
    """Uncompressed size of all shards, in bytes."""
    selected_bytes: int
    """Estimated size of the selected documents: their share of each shard, in bytes."""
    shards: int
    """Number of shards."""
    read_shards: int
    """Number of shards with selected documents, which a run fetches."""
    read_bytes: int
    """Uncompressed size of these shards, in bytes."""
    tokens: tuple[SelectedTokens, ...]
    """Tokens by count of the dataset; empty if its tokens are not counted."""
    groups: int
    """Number of groups of shards, each of which has a file."""
    compiled_groups: int = 0
    """Number of groups that this call compiled. Earlier calls compiled the others."""
    seconds: float = 0.0
    """Duration of this call, in seconds."""
    datasets: Mapping[str, int] = field(default_factory=dict)
    """Number of selected documents of each dataset, by location; empty unless it is a glob."""

    @property
    def warning(self) -> str | None:
        """Why the rule is probably not what was meant: it selects no documents, or all of them."""
        if 0 < self.selected < self.samples:
            return None
        effect = "left out, so the rule has no effect" if self.selected else "selected"
        by_id = any(name in self.rule for name in ("keep_ids", "drop_ids"))
        hint = ". Compare the listed IDs with those of cloudload head" if by_id else ""
        return f"no document is {effect}{hint}"

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return reports.to_json(self)

    def describe(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        share = _share(self.selected, self.samples)
        of = counted(self.samples, "document")
        yield f"{self.dataset}: {self.selected:,} of {of} ({share})"
        yield f"  selection  {self.location}"
        for dataset, selected in self.datasets.items():
            yield f"  {selected:>9,}  {dataset}"
        if self.warning:
            yield f"  warning    {self.warning}"
        for name, value in self.rule.items():
            yield f"  {name:9}  {value}"
        share = _share(self.selected_bytes, self.raw_bytes)
        yield f"  bytes      about {self.selected_bytes:,} of {self.raw_bytes:,} ({share})"
        for each in self.tokens:
            shown = _share(each.selected, each.tokens)
            yield f"  tokens     {each.selected:,} of {each.tokens:,} ({shown}) by {each.lengths}"
        ratio = self.read_bytes / max(1, self.selected_bytes)
        yield f"  shards     {self.read_shards:,} of {self.shards:,} have selected documents"
        yield f"  egress     {ratio:.2f} bytes fetched for each byte of a selected document"
        later = "are selected" if self.default else "are not selected"
        yield f"  appended   documents of shards that are appended later {later}"
        yield f"  seconds    {self.seconds:.1f}"


def sum_reports(dataset: str, reports: Sequence[SelectReport]) -> SelectReport:
    """Sum up the reports of the datasets that the glob `dataset` selects."""
    names = "samples selected raw_bytes selected_bytes shards read_shards read_bytes groups"
    sums = {name: sum(getattr(each, name) for each in reports) for name in names.split()}
    return replace(
        reports[0],
        **sums,
        dataset=dataset,
        location=f"{dataset}/{own_objects.SELECTIONS_FOLDER}/{reports[0].name}",
        tokens=tuple(tokens for each in reports for tokens in each.tokens),
        datasets={each.dataset: each.selected for each in reports},
    )


def _share(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.1%}"
