"""`check_dataset` finds doubtful and repeated documents, names them, and obeys `fail_on`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.tools.check import check_dataset, groups
from cloudload.tools.check.document_rules import DOCUMENT_RULES
from cloudload.tools.check.findings import MOST_LISTED, CheckReport
from testkit.corpora import EOS, byte_tokenizer, write_mds

PLAIN = [f"document {number}, ascii" for number in range(70)]


def check(folder: str | Path, **options: Any) -> CheckReport:
    return check_dataset(folder, progress=False, processes=1, **options)


def write(folder: Path, *texts: str, ids: list[str] | None = None, **options: Any) -> Path:
    """Write 70 documents that break no rule, then `texts`, with 10 documents per shard."""
    documents = [*PLAIN, *texts]
    if ids is not None:
        options["extra"] = {"id": ("str", [f"plain-{number}" for number in range(70)] + ids)}
    sizes = [10] * (len(documents) // 10) + [len(documents) % 10] * (len(documents) % 10 > 0)
    write_mds(folder, documents, shard_samples=sizes, **options)
    return folder


BROKEN: list[tuple[str, str, str]] = [
    ("text-empty", "", "is empty"),
    ("text-empty", " \n\t", "is only white space (3 bytes)"),
    ("text-empty", "\u3000\xa0" * 50, "is only white space (250 bytes)"),
    ("text-long", "x" * 1025, "has 1,025 bytes, more than 1,024"),
    ("text-special", "then <|im_start|> now", "has <|im_start|> at byte 5"),
]
GOOD = [
    *(
        "\x1b[31mred\x1b[0m\r\n",
        "x" * 1024,
        "Привет, мир",
        "déjà vu, l\u2019été",
        "fine 😀 day",
        "狐 の",
        "عربي",
        "<s> <| |>",
    ),
    "a\x00b",
]


@pytest.mark.parametrize(("kind", "text", "what"), BROKEN)
def test_a_document_that_breaks_a_rule_is_named(
    tmp_path: Path, kind: str, text: str, what: str
) -> None:
    folder = write(tmp_path / "data", "good", text, ids=["first", "second"])
    report = check(folder, max_bytes="1kb")
    assert report.counts == {kind: 1}
    [finding] = report.findings
    assert finding.where == "shard.00007.mds"
    assert finding.what.startswith("sample 1 (id 'second') ")
    assert what in finding.what
    assert (report.documents, report.is_sound) == (72, True)
    for fail_on in (kind, [kind], "all"):
        assert not check(folder, max_bytes="1kb", fail_on=fail_on).is_sound


def test_texts_of_many_languages_break_no_rule(tmp_path: Path) -> None:
    report = check(write(tmp_path / "data", *GOOD), max_bytes="1kb")
    assert (report.findings, report.documents) == ((), 70 + len(GOOD))


def test_the_tokenizer_gives_special_tokens_and_the_tokens_around_documents(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", f"a {EOS} b", f"the end{EOS}\n", "<|im_end|>")
    report = check(folder, tokenizer=byte_tokenizer(), eos=EOS)
    assert report.counts == {"text-special": 2, "text-framed": 1}
    framed = next(each for each in report.findings if each.kind == "text-framed")
    assert framed.what == f"sample 1 ends with {EOS}, which the loader also adds"
    assert check(folder, tokenizer=byte_tokenizer(), eos=None).counts == {"text-special": 2}
    framing = {"eos": EOS, "expect_eos": EOS, "expect_bos": "none"}
    assert check(folder, tokenizer=byte_tokenizer(), **framing).is_sound
    wrong = check(folder, tokenizer=byte_tokenizer(), eos=None, expect_eos=EOS)
    assert wrong.counts["framing-differs"] == 1
    assert not wrong.is_sound
    assert wrong.findings[0].what == (
        f"documents get no eos instead of eos '{EOS}'. The tokenizer adds "
        "no bos (the template of tokenizer.json adds none), no eos"
    )
    with pytest.raises(ValueError, match="expect_bos and expect_eos require a tokenizer"):
        check(folder, expect_bos="<s>")


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """Write two texts that repeat one from an earlier shard, and two documents with the same ID."""
    texts = [PLAIN[3], "new", PLAIN[3], "", ""]
    return write(tmp_path / "data", *texts, ids=["a", "b", "a", "c", "d"], compression="zstd")


def test_documents_that_repeat_an_earlier_one_are_named_with_it(repeated: Path) -> None:
    report = check(repeated)
    assert report.counts == {"text-empty": 2, "text-repeated": 2, "id-repeated": 1}
    found = [each.what for each in report.findings if each.kind != "text-empty"]
    first = "(id 'plain-3') of shard.00000.mds"
    assert found == [
        f"sample 0 (id 'a') has the same text as sample 3 {first}",
        f"sample 2 (id 'a') has the same text as sample 3 {first}",
        "sample 2 (id 'a') has the same ID as sample 0 (id 'a') of shard.00007.mds",
    ]
    assert check(repeated, sample=1).counts == {}
    assert check(repeated, rules=["id-repeated"]).counts == {"id-repeated": 1}
    assert check(repeated, rules="none").counts == {}


@pytest.mark.parametrize("encoding", ["ndarray:uint16", "bytes"])
def test_token_ids_that_a_run_reads_are_not_text(tmp_path: Path, encoding: str, cli: Any) -> None:
    ids = [np.array([number, 0xFFFF], "uint16") for number in range(70)]
    values = [each.tobytes() for each in ids] if encoding == "bytes" else ids
    data = write_mds(tmp_path / "data", values, column="tokens", encoding=encoding)
    report = check(data, tokens_key="tokens", text_key="tokens")
    assert (report.findings, report.documents) == ((), 0)
    [finding] = check(data, tokens_key="ids").findings[:1]
    assert finding.kind == "text-column"
    assert finding.what == "has no column 'ids'. Columns that could contain token IDs: tokens"
    config = tmp_path / "run.yaml"
    run = {"data": data, "seq_len": 8, "tokens_key": "tokens", "tokens_dtype": "uint16"}
    config.write_text(json.dumps(run))
    for command in (["--config", str(config)], [data, "--tokens-key", "tokens"]):
        found = json.loads(cli("check", *command, "--quiet", "--json", "--processes", "1").out)
        assert found.get("datasets", [found])[0]["counts"] == {}


@pytest.mark.parametrize(("encoding", "values"), [("str", ["", "a"]), ("json", ["", None, "a"])])
def test_documents_without_an_id_do_not_repeat_one(
    tmp_path: Path, encoding: str, values: list[str | None]
) -> None:
    ids = [values[number % len(values)] for number in range(10)]
    write_mds(tmp_path, PLAIN[:10], extra={"id": (encoding, ids)})
    assert check(tmp_path).counts == {"few-samples": 1, "id-repeated": ids.count("a") - 1}


def test_the_report_of_documents_is_the_same_on_every_engine(
    repeated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = check(repeated)
    monkeypatch.setattr(groups, "GROUP_BYTES", 500)  # one group per shard
    monkeypatch.setattr(groups, "PART_BYTES", 24 * 4)  # 4 records per part
    monkeypatch.setattr(groups, "MEMORY_BYTES", 1)  # every part is stored in a file
    with ThreadPoolExecutor(3) as executor:
        for options in ({}, {"executor": executor}):
            report = check(repeated, **options)
            assert (report.findings, report.counts) == (expected.findings, expected.counts)


@given(st.lists(st.lists(st.integers(0, 6), max_size=8), max_size=6), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_repeats_are_those_of_a_dictionary(shards: list[list[int]], parts: int) -> None:
    samples_of_a_part = groups.PART_BYTES // 24
    finder = groups.DuplicateFinder(["text-repeated"], samples_of_a_part * parts)
    assert len(finder._parts["text-repeated"]) == parts
    places = [
        (shard, sample) for shard, values in enumerate(shards) for sample in range(len(values))
    ]
    for shard in reversed(range(len(shards))):  # groups may finish in any order
        values = ((sample, bytes([value])) for sample, value in enumerate(shards[shard]))
        finder.add(shard, {"text-repeated": groups.encode_records(values)})
    seen: dict[int, tuple[int, int]] = {}
    expected = []
    for shard, sample in places:
        value = shards[shard][sample]
        if value in seen:
            expected.append((shard, sample, *seen[value]))
        seen.setdefault(value, (shard, sample))
    assert finder.find("text-repeated", 5) == (len(expected), expected[:5])
    finder.close()


def test_many_broken_documents_are_counted_and_a_share_of_them_may_be_allowed(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "data", *["<|x|>"] * 30)
    report = check(folder, rules=["text-special"], fail_on={"text-special": "30%"})
    assert report.counts == {"text-special": 30}
    assert len(report.findings) == MOST_LISTED
    assert report.is_sound
    report = check(folder, rules=["text-special"], fail_on={"text-special": 0.29, "all": 0.9})
    assert (report.above_limits, report.is_sound) == (("text-special",), False)


def test_wrong_rules_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    for options, message in (
        (
            {"rules": "text-mojibake"},
            "rules has the unknown rule 'text-mojibake'. Use all, none, or any of text-empty, ",
        ),
        ({"fail_on": ["size"]}, "fail_on has the unknown rule 'size'"),
        ({"fail_on": {"text-long": "2"}}, "fail_on has text-long=2. Use a share of documents"),
        ({"fail_on": "size"}, "fail_on has the unknown rule 'size'"),
        ({"fail_on": "text-long", "rules": "none"}, "'text-long', but rules is empty"),
        ({"fail_on": "all", "rules": []}, "fail_on has 'all', but rules is empty"),
        ({"fail_on": "text-long", "rules": "text-empty"}, "does not apply. Add it to rules"),
        ({"fail_on": "text-framed"}, "'text-framed', but this rule does not .* Pass a tokenizer"),
        ({"fail_on": "all", "sample": 0}, "fail_on requires documents, but sample=0 reads none"),
        ({"rules": ["text-framed"]}, "the rule text-framed requires a tokenizer"),
        ({"max_bytes": 0}, "0 is not a size"),
    ):
        with pytest.raises(ValueError, match=message):
            check(folder, **options)


def list_kinds(report: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in report["findings"]]


def test_the_command_takes_rules_from_flags_and_from_a_config(tmp_path: Path, cli: Any) -> None:
    one, two = write(tmp_path / "one", "<|x|>"), write(tmp_path / "two", "", "x" * 2000)
    command = ["check", one, "--quiet", "--processes", "1"]
    printed = cli(*command).out
    assert "  warning: text-special\n    shard.00007.mds: sample 0 has <|x|> at byte 0" in printed
    assert "samples    71 (71 tested by the rules)" in printed
    printed = cli(*command, "--fail-on", "text-special=1%,text-empty", status=1).out
    assert "failed: 1.408% of the documents break text-special" in printed
    cli(*command, "--fail-on", "text-empty,text-special=2%")
    cli(*command, "--fail-on", "text-empty", "--fail-on", "text-special=2%")
    cli(*command, "--rules", "text-empty,text-long", "--fail-on", "all")

    config = tmp_path / "run.yaml"
    rules = {"rules": [*DOCUMENT_RULES[:3]], "max_bytes": "1kb", "fail_on": ["text-long"]}
    run = {"data": [str(one), str(two)], "seq_len": 8, "check": rules}
    config.write_text(json.dumps(run))
    command = ["check", "--config", config, "--quiet", "--json", "--processes", "1"]
    first, second = json.loads(cli(*command, status=1).out)["datasets"]
    assert (list_kinds(first), first["is_sound"]) == (["text-special"], True)
    assert sorted(list_kinds(second)) == ["text-empty", "text-long"]
    assert second["above_limits"] == ["text-long"]
    printed = cli(*command, "--fail-on", "text-special", status=1).out  # overrides the config
    assert [each["is_sound"] for each in json.loads(printed)["datasets"]] == [False, True]
    config.write_text(json.dumps({**run, "check": {"fail_on": "text-special"}}))
    cli(*command, status=1)
    cli(*command, "--sample", "0")  # no document is tested
    config.write_text(json.dumps({**run, "check": {"rule": []}}))
    expected = "in the config is {'rule': []}. Use a mapping with any of the keys "
    assert f"{expected}'rules', 'max_bytes', 'fail_on'," in cli(*command, status=1).err
