"""Check a dataset: its index, the objects in its folder, and the bytes of its shards."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from cloudload.config import Chat, Stream, checks, choices
from cloudload.data import (
    ID_KEY,
    Dataset,
    Location,
    Retry,
    read_index,
    shard_entries,
    urls,
    virtual_index,
)
from cloudload.errors import DatasetError, FailureKind, StoreError
from cloudload.rows import TokenName
from cloudload.system import open_progress_bar, option_help
from cloudload.tools.check import document_rules
from cloudload.tools.check.findings import CheckReport, Finding, Findings, find
from cloudload.tools.check.groups import CheckWork, DuplicateFinder, add_repeats, check_shards
from cloudload.tools.check.index_entries import DocumentKeys, check_index
from cloudload.tools.check.shard_contents import check_codecs, name_samples
from cloudload.tools.check.stored_objects import (
    LengthsCheck,
    check_objects,
    check_others,
    check_url,
    list_folder,
)
from cloudload.tools.engines.units import Share, count_processes
from cloudload.tools.inspect.info import spread_items
from cloudload.tools.inspect.trained_documents import open_recipe_of


@option_help.suggests_names
def check_dataset(
    dataset: str | os.PathLike[str],
    *,
    split: str | None = None,
    text_key: str | None = "text",
    tokens_key: str | None = None,
    chat: Chat | Literal["auto"] | None = "auto",
    rules: str | Collection[str] = document_rules.ALL,
    max_bytes: int | str = "10mb",
    tokenizer: Any = None,
    bos: TokenName = choices.AUTO,
    eos: TokenName = choices.AUTO,
    expect_bos: str | None = None,
    expect_eos: str | None = None,
    fail_on: str | Collection[str] | Mapping[str, float | str] = (),
    sample: int | None = None,
    processes: int | None = None,
    executor: Executor | None = None,
    worker: str | None = None,
    retry: Retry | None = None,
    progress: bool = True,
) -> CheckReport:
    """Check a dataset as cloudload and StreamingDataset would read it.

    The report lists the problems that either reader would have. It does not depend on the number of
    processes or machines. Nothing is written to the dataset or to a cache. Each process reads 4
    shards at a time, or 8 if it is the only process. A shard is in memory while it is decompressed,
    and in a temporary file while it is checked.

    Two rules find repeated texts and IDs. They compare 128-bit hashes, which each rule keeps in
    temporary files of 24 bytes per document. For up to 1.4 billion documents, memory does not grow
    with the dataset. Each of the two rules keeps up to 256 files open, and finds repeats only among
    the shards that this call reads.

    Args:
        dataset: the folder or URL that contains `index.json`, or that contains the folder `split`.
        split: the subfolder to check, such as `train`.
        text_key: the column that holds the document. None is for documents without a text.
        tokens_key: the column that holds the document as token IDs, if the run reads token IDs. The
            check then tests no text, and no rule that begins with `text-` or `chat-` applies.
        chat: how the run reads conversations, as for `Stream`. They are tested by the rules that
            begin with `chat-`. With a `Chat` and a tokenizer, these rules also test what the run
            makes of each conversation. With `auto`, documents are conversations if there is no
            column `text`, or if `text_key` is None, and the dataset has columns of conversations.
            With None, they are not.
        rules: the rules that documents are tested with: names such as `text-repeated`, `all`, or
            `none`. `all` omits rules that need a tokenizer or `chat` if there is none.
        max_bytes: size in bytes of UTF-8 above which a text breaks the rule `text-long`.
        tokenizer: the run's tokenizer, as for `CloudLoader`. The rule `text-special` looks for its
            special tokens. Without a tokenizer, it looks for anything like `<|name|>`. It has the
            chat template for `chat`.
        bos: the argument `bos` of the run's loader.
        eos: the argument `eos` of the run's loader.
        expect_bos: the bos that the tokenizer should add to documents, or `none` for no bos.
        expect_eos: the eos that the tokenizer should add to documents, or `none` for no eos.
        fail_on: rules that make the dataset unsound if any document breaks them, or more than a
            share, such as `0.1%`. In Python, a mapping has the share of each rule. `all` means
            every rule in `rules`. A rule that is not in `rules` is refused.
        sample: number of shards to read, spread evenly over the dataset. By default, all shards
            are read. With 0, only the index and the names and sizes of the objects are checked.
        processes: number of worker processes, one per available core by default, and at most one
            per 512 MiB of raw shards. With 1, all work is done in this process.
        executor: check the shards on this `concurrent.futures.Executor` instead, such as a
            `cloudload.engines.ray.RayExecutor`. Its workers must have access to the dataset.
        worker: check only one share of the shards, as one of several jobs: `I/N`, with I from 0 to
            N - 1, or `auto` in a job of a Slurm array, a Kubernetes Indexed Job, or AWS Batch.
            Together, the reports of all workers contain the findings of a whole check. Only worker
            0 checks the index and the names and sizes of the objects.
        retry: how long to retry a request to the store.
        progress: show a progress bar on stderr.

    Raises:
        ValueError: an argument is invalid.
        TokenizerError: the tokenizer cannot be loaded.
        StoreError: the store cannot be reached, or denies access. A missing index or shard is a
            finding.
        WorkerError: a worker process failed or died.
    """
    sample = None if sample is None else checks.as_integer("sample", sample, 0)
    expected = {"bos": expect_bos, "eos": expect_eos}
    given = chat if isinstance(chat, Chat) and tokens_key is None else None
    if tokenizer is not None:
        from cloudload.rows import find_tokenizer

        tokenizer = find_tokenizer(tokenizer)  # once, because loading one by name takes seconds
    chosen, framing = _choose_rules(
        rules, max_bytes, tokenizer, chat=given, frame=(bos, eos), expected=expected
    )
    limits = document_rules.parse_limits(fail_on, chosen.names)
    if limits and sample == 0:
        raise ValueError(
            "fail_on requires documents, but sample=0 reads none. Omit fail_on, or increase sample"
        )
    processes = count_processes(processes)
    share = Share.parse(worker) if worker is not None else Share(0, 1)
    began, findings = time.monotonic(), Findings()
    stream = Stream(os.fspath(dataset), split=split)
    location = stream.locate(retry or Retry())
    folder = location.at(urls.plain_location(location.url))
    if tokens_key is not None or isinstance(chat, Chat):
        text_key = None
    keys = DocumentKeys(text_key, tokens_key, chat)
    checked = _check_dataset(location, keys, findings, reads=sample != 0)
    shards, readable = checked.shards, checked.readable
    findings.add(framing)
    if share.index > 0:
        findings = Findings()  # only worker 0 reports the findings so far
    mine = share.take(spread_items(readable, sample))
    has_template = given is not None and chosen.names & {*document_rules.TEMPLATE_RULES}
    recipe = open_recipe_of(stream, tokenizer, chat=given) if has_template else None
    work = CheckWork(folder, text_key, keys.read_chat, chosen, recipe)
    _check_contents(work, mine, findings, processes, executor, progress=progress)
    return CheckReport(
        dataset=str(folder),
        findings=findings.sorted(),
        counts=findings.counts(),
        shards=len(shards),
        shards_read=len(mine),
        samples=sum(shard.samples for shard in shards),
        raw_bytes=sum(shard.raw.bytes for shard in shards),
        stored_bytes=sum(shard.stored.bytes for shard in shards),
        seconds=round(time.monotonic() - began, 3),
        documents=findings.documents,
        lengths=checked.lengths,
        above_limits=tuple(
            kind
            for kind, share in limits.items()
            if findings.count(kind) > share * findings.documents
        ),
    )


def _check_contents(
    work: CheckWork,
    shards: Sequence[shard_entries.ShardInfo],
    findings: Findings,
    processes: int,
    executor: Executor | None,
    *,
    progress: bool,
) -> None:
    """Check the bytes of shards and their documents, and find repeated documents."""
    total_bytes = sum(info.stored.bytes for info in shards)
    num_samples = sum(info.samples for info in shards)
    with (
        closing(DuplicateFinder(work.rules.hashed, num_samples)) as duplicates,
        open_progress_bar("check", total_bytes, shown=progress and bool(shards)) as bar,
    ):
        for found in check_shards(
            work,
            shards,
            duplicates,
            processes=processes,
            executor=executor,
            on_bytes=bar.update,
        ):
            findings.merge(found)
        add_repeats(duplicates, findings, partial(_name_samples, work, shards))


def _choose_rules(
    names: str | Collection[str],
    max_bytes: int | str,
    tokenizer: Any,
    *,
    chat: Chat | None,
    frame: tuple[TokenName, TokenName],
    expected: Mapping[str, str | None],
) -> tuple[document_rules.DocumentRules, list[Finding]]:
    """Return the rules for documents, and findings about the bos and eos around documents."""
    if tokenizer is None:
        if any(expected.values()):
            raise ValueError(
                "expect_bos and expect_eos require a tokenizer. Pass tokenizer=…, or omit them"
            )
        return document_rules.choose_rules(names, max_bytes), []
    from cloudload.rows import load_tokenizer

    spec = load_tokenizer(tokenizer, (frame,))
    rules = document_rules.choose_rules(names, max_bytes, spec, chat)
    return rules, list(document_rules.check_frame(rules, spec.framing, **expected))


def _name_samples(
    work: CheckWork, shards: Sequence[shard_entries.ShardInfo], shard: int, samples: Sequence[int]
) -> tuple[str, list[str]]:
    """Return a shard's file name, and a description of each sample: its index, and any ID."""
    info = shards[shard]
    if any(column.name == ID_KEY for column in info.columns):
        return info.raw.name, name_samples(work.location, info, samples)
    return info.raw.name, [f"sample {sample}" for sample in samples]


@dataclass(frozen=True)
class _CheckedFolder:
    """The shards in the index, those to read, and the number of tokenizers with all lengths."""

    shards: Sequence[shard_entries.ShardInfo] = ()
    readable: Sequence[shard_entries.ShardInfo] = ()
    lengths: int = 0


def _check_dataset(
    location: Location,
    keys: DocumentKeys,
    findings: Findings,
    *,
    reads: bool,
) -> _CheckedFolder:
    """Check the index and the folder's objects.

    Shards whose codec is not installed are not read. With `reads`, token lengths are read.
    """
    try:
        data, _ = read_index(location)
    except DatasetError as error:
        what, _, advice = str(error).partition(". ")
        findings.add([find("index-missing", "", what, advice=advice)])
        return _CheckedFolder()
    except StoreError as error:
        if not error.is_missing:
            raise
        findings.add([find("index-missing", "", str(error))])
        return _CheckedFolder()
    if virtual_index.is_virtual(data):
        raise DatasetError(
            f"{location} is an index of Parquet or JSON Lines files, which cloudload check does "
            "not read. Read documents with cloudload head, or convert the files to check them"
        )
    shards, is_complete = check_index(data, keys, findings)
    findings.add(check_url(location.url, shards))
    folder = location.at(url := urls.plain_location(location.url))
    sizes = _list_folder(folder, findings)
    compressions = {shard.compression for shard in shards}
    readable = {each for each in compressions if not check_codecs([each])}
    intact = [shard for shard in shards if shard.compression in readable]
    if sizes is None:
        return _CheckedFolder(shards, intact)
    findings.add(check_objects(url, shards, sizes))
    lengths = LengthsCheck(Dataset(folder, shards, ""), sizes, reads)
    if is_complete:  # otherwise, the index names more shards than `shards`
        findings.add(lengths.run())
        findings.add(check_others(url, shards, sizes))
    intact = [shard for shard in intact if sizes.get(shard.stored.name) == shard.stored.bytes]
    return _CheckedFolder(shards, intact, len(lengths.complete))


def _list_folder(folder: Location, findings: Findings) -> dict[str, int] | None:
    """Map the folder's objects to their sizes, or add a finding if the store cannot list it."""
    try:
        return list_folder(folder)
    except StoreError as error:
        if error.kind not in (FailureKind.OTHER, FailureKind.DENIED):
            raise
        findings.add([find("not-listed", "", str(error))])
        return None
