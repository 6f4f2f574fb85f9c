"""Plan a conversion: create a plan, or use the stored plan if it is for the same conversion.

    Conversion, the options of a run ─► agree_on_plan ─► Planned ─► run ─► finish

A plan may append to a finished dataset, whose shards are then the start of the new index:

    index.json   shard.00000 …   00001/shard.00000 …          │ 00007/shard.00000 …
                 existing shards, not changed                 │ the segments that are appended

The existing dataset remains readable until its index is replaced, in one step. The names in the IDs
of appended documents begin with `+` and the index of the first segment of the same append, so they
differ from those of earlier files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cloudload.data import Location, own_objects, shard_entries, writer
from cloudload.errors import ConvertError
from cloudload.tools.convert import conversion_plan, input_records, rerun_check
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_plan import ConversionPlan, Files, Segment, Segments
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.joined_segments import JoinedSegments
from cloudload.tools.convert.journal import Journal
from cloudload.tools.convert.output_location import Output, does_exist
from cloudload.tools.convert.values import PeekableBlocks
from cloudload.tools.count.group import CountWork
from cloudload.tools.engines.units import Share

_SMALL_BYTES, _MOST_SMALL = 1 << 20, 10_000

_FOLDER = re.compile(r"(\d{5,})/")


@dataclass(frozen=True)
class Conversion:
    """The output and the options of a run. Only `config` affects the bytes of the output."""

    output: Output
    config: ConvertConfig
    processes: int
    executor: Executor | None
    share: Share | None
    finish: bool
    skip_bad: bool
    rejects: Location | None
    """The location of the file of rejects, or None."""
    progress: bool
    count: CountWork | None = None
    """How to count tokens, or None if they are not counted."""
    overwrite: bool = False
    """Whether this run removed the earlier dataset."""
    may_be_empty: bool = False
    """Whether an output without documents is no error. Its journal is then kept."""

    @property
    def location(self) -> Location:
        """The location of the output."""
        return self.output.home

    def already_complete(self, report: ConvertReport, rebuilt: int = 0) -> ConvertReport:
        """Return the report of a dataset of an earlier run. This run rebuilt some of its shards.

        Raises `ConvertError` if bad records were left out and the file of rejects is missing.
        """
        if self.rejects and report.bad and not does_exist(self.rejects):
            raise ConvertError(
                f"{self.location} is already complete, and its bad records were not written to "
                f"{self.rejects}. To write them, convert again with overwrite (--overwrite)"
            )
        return replace(
            report,
            out=str(self.location),
            already_complete=not rebuilt,
            seconds=0.0,
            resumed_shards=report.shards - rebuilt,
            rebuilt_shards=rebuilt,
        )


@dataclass(frozen=True)
class Planned:
    """A planned conversion: the files of its plan, or units if not all inputs are files."""

    run: Conversion
    plan: ConversionPlan
    files: Files = ()
    units: Sequence[input_records.InputUnit] = ()
    """The units of the only segment."""
    blocks: PeekableBlocks | None = None
    """The blocks of the units, from which the plan's columns were inferred. None for files."""

    @cached_property
    def segments(self) -> Segments:
        """The segments of the files."""
        return self.plan.segments(self.files)

    @cached_property
    def indices(self) -> range:
        """The indices of the plan's segments."""
        first = self.plan.first_segment
        return range(first, first + (len(self.segments) if self.blocks is None else 1))

    def segment(self, index: int) -> Segment:
        """Return the parts of files of a segment."""
        return self.segments[index - self.plan.first_segment]

    def describe_inputs(self) -> str:
        """Name the first file or unit, and count the other ones."""
        inputs = self.files if self.blocks is None else self.units
        more = f" and {len(inputs) - 1:,} more" if len(inputs) > 1 else ""
        return f"{inputs[0].name}{more}"


def check_sizes(location: Location, units: Sequence[input_records.InputUnit]) -> None:
    """Raise `ConvertError` if a complete dataset may be of other data, as of another iterator."""
    if unknown := [unit.name for unit in units if unit.size is None]:
        raise ConvertError(
            f"{location} is already complete, but cloudload cannot check that it was made "
            f"from {unknown[0]}. Choose another output, or start over (--overwrite)"
        )


def agree_on_plan(
    journal: Journal,
    config: ConvertConfig,
    folders: Sequence[FolderFiles],
    infer: Callable[[], tuple[shard_entries.Column, ...]],
    *,
    is_files: bool,
    append: bool,
) -> ConversionPlan:
    """Create and store a plan, or return the stored plan if it is for the same conversion.

    `folders` are the inputs that are files. Unless all are, there is a single segment. `infer`
    returns the columns of the kept fields; it is called only to create a plan. With `append`, the
    plan adds to the existing dataset. Raises `ConvertError` if there is no dataset to append to, if
    another conversion to this output finished meanwhile, or if the stored plan is for another one.
    """
    location = journal.location.join(conversion_plan.PLAN_NAME)
    inputs = tuple(map(rerun_check.plan_input, folders))
    data = location.read_if_exists()
    if data is None:
        claim = journal.claim
        base = read_base(journal.output, claim) if append else None
        has_several = is_files and _has_several(journal, folders)
        if not append and not has_several:
            claim = {
                **claim,
                "recipe": rerun_check.omit(claim["recipe"], rerun_check.SEGMENT_BYTES),
            }
        plan = make_plan(
            claim,
            stored_columns(base["stored"], config) if base else infer(),
            config,
            folders,
            is_files=is_files,
            base=base,
        )
        encoded = plan.encode()
        if (data := location.create(encoded)) == encoded:
            _check_current(journal, plan)
            return plan.with_digest(data)
        del encoded
    plan = ConversionPlan.parse(data)
    if append and plan.base is None:
        raise ConvertError(
            f"cannot append to {journal.location}, because its conversion is not finished. "
            "Finish it first by converting without append (--append)"
        )
    rerun_check.compare_claims(
        journal.location, plan.claim, journal.claim, plan.sizes, journal.files
    )
    conversion_plan.check_versions(plan.versions)
    conversion_plan.check_files(plan, inputs)
    return plan


def make_plan(
    claim: Mapping[str, Any],
    columns: tuple[shard_entries.Column, ...],
    config: ConvertConfig,
    folders: Sequence[FolderFiles],
    *,
    is_files: bool = True,
    base: Mapping[str, Any] | None = None,
) -> ConversionPlan:
    """Create a plan, which is not stored. The arguments are as for `agree_on_plan`."""
    files = (file for item in folders for file in item.files)
    formats = {name for file in files for name in (file.format, file.compression or "")}
    # a plan has neither the index entries of MDS shards nor the file order of saved datasets
    must_list = not is_files or not formats.isdisjoint({"mds", "arrow"})
    versions = conversion_plan.list_versions(config, formats)
    inputs = tuple(map(rerun_check.plan_input, folders))
    first = base["segments"] if base else 0
    return ConversionPlan(claim, columns, versions, inputs, must_list, first, base)


def list_files(plan: ConversionPlan, folders: Sequence[FolderFiles], format: str) -> Files:
    """Return the files of a plan. `folders` are its inputs."""
    if plan.must_list:
        return [file for item in folders for file in item.files]
    return plan.files([item.root for item in folders], format)


def _has_several(journal: Journal, folders: Sequence[FolderFiles]) -> bool:
    """Whether there are several segments. Raises `ValueError` for very many small ones."""
    files = [file for item in folders for file in item.files]
    segment_bytes = journal.claim["recipe"][rerun_check.SEGMENT_BYTES]
    num_segments = input_records.sum_bytes(files) // segment_bytes
    if segment_bytes < _SMALL_BYTES and num_segments > _MOST_SMALL:
        raise ValueError(
            f"segment_bytes (--segment-bytes) is {segment_bytes:,}, which would cut the input into "
            f"some {num_segments:,} segments. Use at least {_SMALL_BYTES:,}"
        )
    return len(Segments(files, segment_bytes)) > 1


def _check_current(journal: Journal, plan: ConversionPlan) -> None:
    """Remove a plan that was just stored, and raise `ConvertError`, if it came too late.

    After this process looked for a dataset at the output, and before it stored the plan, another
    conversion may have finished there.
    """
    if has_changed(journal.output, plan.base):
        journal.location.join(conversion_plan.PLAN_NAME).delete()
        raise ConvertError(
            f"another conversion to {journal.location} finished just now. Run again to "
            "compare it with this one"
        )


def read_base(output: Output, claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `base` of a plan: the digest and the report of the datasets at the output.

    Its `segments` is the index of the first segment to append. Raises `ConvertError` if there is
    no dataset, or if its recipe differs from the claim's.
    """
    location = output.home
    differing = (rerun_check.SEGMENT_BYTES, rerun_check.LENGTHS_FIELD)
    report = _read_report(output)
    if report is None or not all(map(does_exist, _list_indexes(output))):
        raise ConvertError(
            f"cannot append to {location}, because it has no finished conversion. Finish "
            "the conversion first, or convert without append (--append)"
        )
    rerun_check.compare_claims(
        location,
        {"recipe": rerun_check.omit(report["claim"]["recipe"], differing[1]), "inputs": {}},
        {"recipe": rerun_check.omit(claim["recipe"], *differing), "inputs": {}},
    )
    entries = _read_entries(output)
    segments = (_segment_of(entry) for several in entries.values() for entry in several)
    return {"index": _digest(entries), "stored": report, "segments": max(segments, default=0) + 1}


def read_appended_report(output: Output) -> dict[str, Any] | None:
    """Return the stored report of the dataset to append to, or None if there is none.

    If an append is unfinished, it is the report from before that append.
    """
    plan = output.home.join(conversion_plan.PLAN_NAME).read_if_exists()
    base = json.loads(plan)["base"] if plan is not None else None
    return dict(base["stored"]) if base else _read_report(output)


def stored_columns(
    stored: Mapping[str, Any], config: ConvertConfig
) -> tuple[shard_entries.Column, ...]:
    """Return the columns of the kept fields of a dataset, which appended data must also have."""
    columns = stored["report"]["columns"].items()
    return tuple(
        shard_entries.Column.of(name, kind)
        for name, kind in columns
        if name not in config.own_columns
    )


def join_base(output: Output, plan: ConversionPlan) -> JoinedSegments:
    """Return the shards of the datasets to which the plan appends; empty for new datasets.

    The result is the same whether or not the indexes already list the appended shards. Raises
    `ConvertError` if a dataset changed in any other way.
    """
    joined = JoinedSegments.none(output.splits)
    if plan.base is None:
        return joined
    entries = {
        split: [entry for entry in several if _segment_of(entry) < plan.first_segment]
        for split, several in _read_entries(output).items()
    }
    if _digest(entries) != plan.base["index"]:
        raise ConvertError(
            f"the index of {output.home} changed after the append started. Restore the "
            "index, and run again to resume"
        )
    joined.add("", entries, ConvertReport.of_stored(plan.base["stored"]).counts())
    return joined


def has_changed(output: Output, base: Mapping[str, Any] | None) -> bool:
    """Whether the indexes differ from those of `base`; without it, whether they list any shards."""
    entries = _read_entries(output)
    return _digest(entries) != base["index"] if base else any(entries.values())


def read_report_if_joined(output: Output, plan: ConversionPlan) -> ConvertReport | None:
    """Return the stored report if the indexes already list the plan's segments, else None.

    Raises `ConvertError` if they list the segments of another conversion.
    """
    report, entries = _read_report(output), _read_entries(output)
    segments = (_segment_of(entry) for several in entries.values() for entry in several)
    if report is None or not any(segment >= plan.first_segment for segment in segments):
        return None
    inputs = report.get("appended", [None])[-1] if plan.base else report["claim"]["inputs"]
    joined = {"recipe": report["claim"]["recipe"], "inputs": inputs}
    if plan.base is None:
        rerun_check.compare_claims(output.home, joined, plan.claim)
    elif inputs != plan.claim["inputs"]:
        raise ConvertError(
            f"another conversion was appended to {output.home} at the same time. Append again"
        )
    return ConvertReport.of_stored(report)


def _read_report(output: Output) -> dict[str, Any] | None:
    """Return the report of the last split, which is stored after those of all other splits."""
    report = output.dataset(output.splits[-1]).join(own_objects.REPORT_NAME)
    data = report.read_if_exists()
    return None if data is None else dict(json.loads(data))


def _list_indexes(output: Output) -> list[Location]:
    return [output.dataset(split).join(shard_entries.INDEX_NAME) for split in output.splits]


def _read_entries(output: Output) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of the indexes by split; no entries for an index that does not exist."""
    texts = [index.read_if_exists() or b'{"shards": []}' for index in _list_indexes(output)]
    return {
        split: json.loads(text)["shards"] for split, text in zip(output.splits, texts, strict=True)
    }


def _digest(entries: Mapping[str, list[dict[str, Any]]]) -> str:
    return hashlib.sha256(b"".join(map(writer.encode_index, entries.values()))).hexdigest()


def _segment_of(entry: Mapping[str, Any]) -> int:
    """Return the index of a shard's segment, or 0 if there is only one segment."""
    found = _FOLDER.match(entry["raw_data"]["basename"])
    return int(found[1]) if found else 0
