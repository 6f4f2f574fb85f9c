"""`cloudload check`: check an MDS dataset, its documents, and the first rows of a run.

Read an MDS dataset's index and shards. List the problems that cloudload or MosaicML Streaming would
have with the dataset, and the documents that look wrong. Optionally, compare the first rows of a
run with those of an earlier run. A glob of datasets checks each of them. Nothing is written to
the dataset.

The exit status is 1 if the check finds an error, if more documents break a rule than --fail-on
allows, or if the rows differ from those in the --golden file. Warnings and notes do not affect it.

examples:
  cloudload check s3://bucket/mds --split train
  cloudload check 's3://bucket/topics/*'     all datasets of a glob
  cloudload check s3://bucket/mds --tokenizer gpt2 --fail-on text-repeated,text-special=0.1%
  cloudload check s3://bucket/chats --tokenizer Qwen/Qwen3-8B --chat tokenizer,max_tokens=4096
  cloudload check --config run.yaml --write-golden golden.json
  cloudload check --config run.yaml --golden golden.json
  cloudload check s3://bucket/mds --engine ray --address auto
  cloudload check s3://bucket/mds --worker 3/64     one job in an array of 64
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudload.system import counted
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import add_declared, list_given
from cloudload.tools.cli.output import print_result
from cloudload.tools.cli.run_options import (
    CHECK,
    add_loader_options,
    names_loader,
    read_loader_options,
    without_start_log,
)

if TYPE_CHECKING:
    from cloudload.config import Stream
    from cloudload.tools.check.findings import CheckReport, Finding
    from cloudload.tools.provenance.golden import GoldenReport

_MOST_SHOWN = 5
_CHECK_OPTIONS = ("rules", "max_bytes", "fail_on", "expect_bos", "expect_eos", "sample")


def add_check(parser: command.CommandParser) -> None:
    from cloudload.tools.check import check_dataset

    add = command.set_up(parser, _check)
    data = "location of the dataset: a folder or URL (default: the data of the run)"
    add("dataset", nargs="?", metavar="DATASET", help=data)
    names = (
        "split text_key tokens_key chat tokenizer rules max_bytes expect_bos expect_eos fail_on "
    )
    names += "sample processes worker"
    add_declared(
        add,
        check_dataset,
        names,
        rules={"type": _split, "metavar": "NAME,..."},
        max_bytes={"type": str},
        fail_on={"type": _parse_limits, "metavar": "NAME[=SHARE],..."},
        sample={"type": _sample},
        processes=command.COUNT,
    )
    command.add_engine_options(add)
    golden = "write the first rows of the run to FILE, and check nothing"
    add("--write-golden", type=command.path_argument, metavar="FILE", help=golden)
    num_rows = "number of rows to write (default: 256)"
    add("--rows", type=command.whole_number(), metavar="N", help=num_rows)
    compare = "also compare the first rows of the run with those in FILE"
    add("--golden", type=command.path_argument, metavar="FILE", help=compare)
    add_loader_options(parser)


def _sample(text: str) -> int | str:
    if text == "all":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of shards nor all. Use a number such as 8, or all"
        )
    return int(text)


def _split(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


def _parse_limits(text: str) -> list[tuple[str, str]]:
    pairs = (each.partition("=") for each in _split(text))
    return [(name, share or "0") for name, _, share in pairs]


@without_start_log()
def _check(options: argparse.Namespace) -> int:
    from cloudload.tools.check import check_dataset

    _check_flags(options)
    asked = list_given(options, check_dataset)
    if "fail_on" in asked:
        asked["fail_on"] = dict(asked["fail_on"])
    has_run = names_loader(options, besides=("text_key", "tokens_key", "chat"))
    if has_run:
        asked.pop("chat", None)  # the run has it, for the streams that it applies to
        options.data = options.data or ([options.dataset] if options.dataset else None)
        has_golden = options.golden or options.write_golden
        required = "data seq_len" if has_golden else "data"
        run = read_loader_options(options, CHECK, required=required)
        run["data"] = _read_streams(run["data"], asked.get("split"))
    elif options.dataset is None:
        options.parser.error("DATASET and --config are both missing. Pass one of them")
    else:
        if options.golden or options.write_golden:
            _refuse_golden(options)
        run = {}
    given = _merge_options(run.pop(CHECK, {}), asked)
    if options.write_golden:
        return _write_golden(run, options)
    if has_run:
        reports = list(_check_datasets(run, given, options))
        is_plain = False
    else:
        streams = command.list_datasets(options.dataset, given.get("split"))
        reports = [_check_one({**given, "dataset": each.remote}, options) for each in streams]
        is_plain = streams[0].name is None
    golden = _compare_golden(run, options) if options.golden else None
    _print(reports, golden, options, is_plain=is_plain)
    return 0 if all(each.is_sound for each in reports) and (not golden or golden.is_same) else 1


def _refuse_golden(options: argparse.Namespace) -> None:
    from cloudload.data import redact

    flag = "--golden" if options.golden else "--write-golden"
    options.parser.error(
        f"{flag} needs the options of a run, but only DATASET {redact(options.dataset)} was given. "
        "Pass --config FILE"
    )


def _check_flags(options: argparse.Namespace) -> None:
    """Report an error if a flag has no effect, or if the golden file cannot be written."""
    if options.golden and options.write_golden:
        options.parser.error(
            "--golden and --write-golden were both given. Pass --golden to compare rows, or "
            "--write-golden to write them"
        )
    if options.rows is not None and not options.write_golden:
        options.parser.error(
            f"--rows {options.rows} has no effect without --write-golden. Pass --write-golden "
            "FILE, or omit --rows"
        )
    command.check_output_path("--write-golden", options.write_golden, options)


def _merge_options(config: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the `check` section of a config with the flags. A flag overrides the config."""
    if not isinstance(config, Mapping) or set(config) - set(_CHECK_OPTIONS):
        # quoted, because unquoted names would become options of the command line
        known = ", ".join(map(repr, _CHECK_OPTIONS))
        raise ValueError(
            f"`check` in the config is {config!r}. Use a mapping with any of the keys {known}"
        )
    given = {**config, **asked}
    if given.get("sample") == "all":
        del given["sample"]
    if asked.get("sample") == 0 and "fail_on" not in asked:
        given.pop("fail_on", None)  # no document is read, so the config's limits cannot apply
    return given


def _read_streams(data: Any, split: str | None) -> list[Stream]:
    """Return the streams of a run. `split` applies to streams that do not name a split."""
    from cloudload.config import as_streams

    return [replace(each, split=each.split or split) for each in as_streams(data)]


def _check_datasets(
    run: Mapping[str, Any], given: Mapping[str, Any], options: argparse.Namespace
) -> Iterator[CheckReport]:
    """Check the dataset of each stream of a run."""
    from cloudload.config import RowsConfig, as_streams, choices
    from cloudload.run import find_streams, frame_of

    of_rows = {name: run[name] for name in run if name in RowsConfig.__dataclass_fields__}
    # `seq_len` is required, but no check uses it
    streams = find_streams(as_streams(run["data"])).streams
    rows = RowsConfig(streams, **{"seq_len": 1, **of_rows})
    for stream in rows.streams:
        bos, eos = frame_of(rows, stream)
        source = rows.source_of(stream)
        chat = source.chat
        if chat is not None and chat.max_tokens is None:
            chat = replace(chat, max_tokens=run.get("seq_len"))
        own = {
            "tokenizer": run.get("tokenizer"),
            "bos": bos,
            "eos": eos,
            "text_key": source.text_key,
            "tokens_key": None if source.tokens is None else source.tokens.key,
            # a function may read conversations
            "chat": choices.AUTO if source.transform or source.encode else chat,
        }
        where = {"dataset": stream.remote, "split": stream.split}
        yield _check_one({**own, **given, **where}, options)


def _check_one(arguments: Mapping[str, Any], options: argparse.Namespace) -> CheckReport:
    from cloudload.tools.check import check_dataset

    with command.open_engine(options) as executor:
        return check_dataset(**arguments, executor=executor, progress=not options.quiet)


def _write_golden(run: Mapping[str, Any], options: argparse.Namespace) -> int:
    from cloudload.tools.provenance.golden import NUM_ROWS, record_golden

    num_rows = NUM_ROWS if options.rows is None else options.rows
    golden = record_golden(num_rows, **run)
    options.write_golden.write_text(golden.to_json(), "utf-8")
    found = {"rows": len(golden.rows), "digest": golden.digest, "file": str(options.write_golden)}
    line = f"{found['file']} has {found['rows']:,} rows with the digest {found['digest']}"
    print_result(found, [line], as_json=options.json)
    return 0


def _compare_golden(run: Mapping[str, Any], options: argparse.Namespace) -> GoldenReport:
    from cloudload.tools.provenance.golden import compare_golden, read_golden

    return compare_golden(read_golden(options.golden), **run)


def _print(
    reports: list[CheckReport],
    golden: GoldenReport | None,
    options: argparse.Namespace,
    *,
    is_plain: bool,
) -> None:
    from cloudload.tools.provenance.golden import describe_report

    lines = [line for each in reports for line in _summary(each)]
    if golden is not None:
        lines += describe_report(golden)
    found = {
        "datasets": [each.as_dict() for each in reports],
        "golden": None if golden is None else golden.as_dict(),
    }
    shown = reports[0].as_dict() if is_plain else found
    print_result(shown, lines, as_json=options.json)


def _summary(report: CheckReport) -> list[str]:
    from cloudload.tools.check.rules import RULES, SEVERITIES

    totals = dict.fromkeys(SEVERITIES, 0)
    for kind, count in report.counts.items():
        totals[RULES[kind].severity] += count
    verdict = ", ".join(counted(count, severity) for severity, count in totals.items())
    lines = [f"{report.dataset}: {verdict}"]
    by_kind: dict[tuple[str, tuple[str, ...]], list[Finding]] = {}
    for finding in report.findings:
        by_kind.setdefault((finding.kind, finding.readers), []).append(finding)
    shown: dict[str, int] = {}
    for (kind, readers), found in by_kind.items():
        who = f", for {' and '.join(readers)}" if readers else ""
        first = _shorten(found)
        shown[kind] = shown.get(kind, 0) + len(first)
        lines.append(f"  {found[0].severity}: {kind}{who}")
        lines += [f"    {_describe(finding)}" for finding in first]
        lines += [f"    {advice}" for advice in dict.fromkeys(each.advice for each in found)]
    for kind, count in report.counts.items():
        if more := count - shown.get(kind, 0):
            lines.append(f"  and {more:,} more {kind}")
    for kind in report.above_limits:
        share = report.counts[kind] / max(1, report.documents)
        lines.append(
            f"  failed: {share:.3%} of the documents break {kind}, more than --fail-on allows"
        )
    if "index-missing" not in report.counts:
        lengths = f"token lengths of {counted(report.lengths, 'tokenizer')}, complete"
        lines += [
            f"  shards     {report.shards:,} ({report.shards_read:,} read)",
            f"  samples    {report.samples:,} ({report.documents:,} tested by the rules)",
            f"  bytes      {report.stored_bytes:,} ({report.raw_bytes:,} raw)",
            *([f"  lengths    {lengths}"] if report.lengths else []),
            f"  seconds    {report.seconds:.1f}",
        ]
    return lines


def _shorten(found: list[Finding]) -> list[Finding]:
    """Keep all findings about shards, but only the first 5 about documents."""
    from cloudload.tools.check import document_rules

    return found[:_MOST_SHOWN] if found[0].kind in document_rules.DOCUMENT_RULES else found


def _describe(finding: Finding) -> str:
    return f"{finding.where}: {finding.what}" if finding.where else finding.what
