"""Conversations are documents with masks: as exact as text, on any world and at any resume."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cloudload import Chat, CloudLoader, Rows, Stream
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.provenance import open_run, trace_steps
from cloudload.rows.tokenization import tokenizer
from cloudload.rows.tokenization.tokenizer import load_by_name
from cloudload.testing import Leg, Row, check_resume, check_worlds, run_leg, run_legs
from cloudload.tools.check import check_dataset
from cloudload.tools.count import count_tokens
from testkit.conversations import (
    PLAIN_TEMPLATE,
    TEMPLATE,
    chat_tokenizer,
    conversations,
    expected_document,
    write_conversations,
)
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader, ranks

MESSAGES = conversations(80)
TOKENIZER = chat_tokenizer()
OPTIONS: dict[str, Any] = {"tokenizer": TOKENIZER, "eos": "auto", "num_lanes": 12}
CHAT: dict[str, Any] = {**OPTIONS, "chat": Chat(), "seq_len": 160}
SILENT: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "train": False}]
]
"""A conversation without trained tokens."""
LEGS = [
    Leg(1, batch_size=6, batches=2),
    Leg(3, workers=1, batch_size=2, batches=2),
    Leg(2, workers=2, batch_size=1, batches=None),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_conversations(tmp_path_factory.mktemp("chat") / "data", MESSAGES)


def documents_in(rows: list[Row]) -> dict[int, tuple[list[int], list[int]]]:
    """The IDs and labels of the documents in rows of whole documents, by sample."""
    found = {}
    for row in rows:
        first = 0
        for _, _, sample, start, stop in row.spans:
            last = first + stop - start
            found[sample] = list(row.input_ids[first:last]), list(row.labels[first:last])
            first = last
    return found


@pytest.mark.parametrize("backend", ["hf", "auto"])
@pytest.mark.parametrize("template", ["tokenizer", TEMPLATE, PLAIN_TEMPLATE])
@pytest.mark.parametrize("packing", ["best_fit", "one_per_row"])
def test_ids_and_labels_are_those_of_transformers(
    folder: str, packing: str, template: str, backend: str
) -> None:
    options = {**CHAT, "chat": Chat(template), "packing": packing, "tokenizer_backend": backend}
    options |= {"epochs": 1, "tail": "pad", "seq_len": 1_000}
    rows = run_legs(ranks(folder, **options), LEGS[-1:])
    expected = [expected_document(TOKENIZER, messages) for messages in MESSAGES]
    assert documents_in(rows) == dict(enumerate(expected))


def with_plain(tokenizer: Any) -> Any:
    """A tokenizer with the same templates without `{% generation %}`, to be learned."""
    plain = {
        name: re.sub(r"{% (end)?generation %}", "", text)
        for name, text in tokenizer.chat_template.items()
    }
    return chat_tokenizer(plain)


def test_rows_with_tools_are_masked_by_the_template_for_tools_and_others_by_the_default(
    tmp_path: Path,
) -> None:
    # the templates end turns with different tokens, and each has text that the other lacks
    with_tools = "Tools: {{ tools | length }}\n" + TEMPLATE.replace("<|im_end|>", "<|endoftext|>")
    tokenizer = chat_tokenizer({"default": TEMPLATE, "tool_use": with_tools})
    tools = [[{"name": "add"}] * (sample % 3) or None for sample in range(len(MESSAGES))]
    extra: dict[str, Any] = {"messages": ("json", MESSAGES), "tools": ("json", tools)}
    folder = write_mds(tmp_path / "data", ["x"] * len(MESSAGES), extra=extra, shard_bytes=4_000)
    pairs = zip(MESSAGES, tools, strict=True)
    expected = dict(enumerate(expected_document(tokenizer, *pair) for pair in pairs))
    options = {**CHAT, "packing": "best_fit", "epochs": 1, "tail": "pad", "seq_len": 1_000}
    for each in (tokenizer, with_plain(tokenizer)):
        rows = run_legs(ranks(folder, **{**options, "tokenizer": each}), LEGS)
        assert documents_in(rows) == expected


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_worlds_and_resumes_change_no_row(folder: str, packing: str, epochs: int) -> None:
    make = ranks(folder, **CHAT, packing=packing, epochs=epochs, tail="pad")
    check_worlds(make, LEGS)
    check_resume(make, global_batch=4, num_batches=5)


def test_conversations_mix_with_text(folder: str, tmp_path: Path) -> None:
    text = write_mds(tmp_path / "text", random_documents(1, 100), shard_bytes=2_000)
    data = [
        Stream(text, proportion=0.8, name="web", eos="<|endoftext|>"),
        Stream(folder, proportion=0.2, name="chat", chat=Chat()),
    ]
    rows = check_worlds(
        ranks(data, **OPTIONS, seq_len=64),
        [Leg(2, batch_size=5, batches=3), Leg(1, workers=1, batch_size=7, batches=4)],
    )
    of_text = [row for row in rows if {span[0] for span in row.spans} == {0}]
    of_chat = [row for row in rows if {span[0] for span in row.spans} == {1}]
    assert min(len(of_text), len(of_chat)) > 0
    assert len(of_text) + len(of_chat) == len(rows)
    assert all(-100 not in row.labels for row in of_text)
    assert all(-100 in row.labels for row in of_chat)


def test_the_limit_of_a_run_is_its_first_seq_len(folder: str) -> None:
    short = ranks(folder, **{**CHAT, "seq_len": 64})
    _, states = run_leg(short, Leg(batches=3))
    assert str(states[-1]["chat"]).endswith("/64")
    longer = ranks(folder, **{**CHAT, "seq_len": 128})
    limited = ranks(folder, **{**CHAT, "seq_len": 128, "chat": Chat(max_tokens=64)})
    rows = run_legs(longer, [Leg(batches=6)], states[-1])
    assert rows == run_legs(limited, [Leg(batches=6)], states[-1])
    spans = [span for row in rows for span in row.spans]
    assert max(stop for *_, stop in spans) <= 64
    with pytest.raises(StreamChangedError, match=r"chat \(the chat templates.*/64'.*/99'"):
        run_leg(ranks(folder, **{**CHAT, "chat": Chat(max_tokens=99)}), Leg(), states[-1])


@pytest.mark.parametrize(
    "chat",
    [Chat(TEMPLATE + "{{ '\n' }}"), Chat(train="last"), Chat(train_eot=False), Chat(trusted=True)],
)
def test_another_template_or_rule_is_refused_by_name(folder: str, chat: Chat) -> None:
    _, states = run_leg(ranks(folder, **CHAT), Leg(batches=2))
    with pytest.raises(StreamChangedError, match=r"chat .*saved 'tokenizer#.*found '"):
        run_leg(ranks(folder, **{**CHAT, "chat": chat}), Leg(), states[-1])
    accepting = ranks(folder, **{**CHAT, "chat": chat}, on_change={"chat": "accept"})
    run_leg(accepting, Leg(), states[-1])
    with pytest.raises(StreamChangedError, match="chat "):
        run_leg(ranks(folder, **{**CHAT, "chat": None, "text_key": "id"}), Leg(), states[-1])


def test_a_count_gives_the_steps_of_an_epoch_and_any_world(folder: str, tmp_path: Path) -> None:
    out = str(tmp_path / "lengths")
    with pytest.raises(ValueError, match=r"Pass Chat\(max_tokens=N\)"):
        count_tokens(folder, tokenizer=TOKENIZER, chat=Chat(), processes=1, out=out)
    report = count_tokens(
        folder, tokenizer=TOKENIZER, chat=Chat(max_tokens=100), processes=1, out=out, progress=False
    )
    assert report is not None
    options = {**CHAT, "seq_len": 100, "packing": "best_fit", "epochs": 3, "tail": "pad"}
    plain = run_legs(ranks(folder, **options, lengths="off"), [Leg(batch_size=8, batches=None)])
    with make_loader(folder, **options, batch_size=8, lengths=out) as loader:
        assert len(loader) == len(plain) // 8
        for _ in loader:
            pass
        stats = loader.stats()
        assert stats.documents == 3 * report.documents
        assert 0 < report.filtered == stats.filtered // 3
    counted = ranks(folder, **options, lengths=out)
    trimmed = [row for row in plain if row.spans]
    for legs in ([Leg(7, batch_size=1, batches=None)], [Leg(5, batches=4), Leg(7, batches=None)]):
        assert [row for row in run_legs(counted, legs) if row.spans] == trimmed
    rows = Rows(folder, **{name: options[name] for name in options if name != "tail"}, lengths=out)
    assert [tuple(rows[index]["labels"].tolist()) for index in range(len(rows))] == [
        row.labels for row in trimmed
    ]


def test_three_epochs_train_each_answer_three_times_in_as_many_steps_on_any_world(
    folder: str, tmp_path: Path
) -> None:
    chat, out = Chat(max_tokens=100), str(tmp_path / "lengths")
    count_tokens(folder, tokenizer=TOKENIZER, chat=chat, processes=1, out=out, progress=False)
    options = {**CHAT, "chat": chat, "seq_len": 128, "packing": "best_fit", "epochs": 3}
    options |= {"lengths": out, "mask_edges": True}
    expected = Counter[tuple[int, int]]()
    for sample, messages in enumerate(MESSAGES):
        _, labels = expected_document(TOKENIZER, messages)
        if len(labels) <= 100:
            expected.update({(sample, at): 3 for at, label in enumerate(labels) if label >= 0})
    steps = set()
    for number in (1, 7):
        leg = Leg(number, batches=None, global_batch=10, micro_batch=2)
        rows, states = run_leg(ranks(folder, **options), leg)
        trained = Counter[tuple[int, int]]()
        assert all(row.is_padding == (not row.spans) for row in rows)
        for row in rows:
            places = [(span[2], at) for span in row.spans for at in range(span[3], span[4])]
            trained.update(
                place for place, label in zip(places, row.labels, strict=False) if label >= 0
            )
        assert trained == expected
        steps.add(len(states) - 1)
    with make_loader(folder, **options, batch_size=10) as loader:
        assert steps == {len(loader)}


def test_missing_lengths_name_the_options_of_chat(folder: str, tmp_path: Path) -> None:
    out = str(tmp_path / "lengths")
    count_tokens(
        folder,
        tokenizer=TOKENIZER,
        chat=Chat(max_tokens=100),
        processes=1,
        out=out,
        progress=False,
    )
    for chat, limit in [
        (Chat(max_tokens=100, train="last"), "max_tokens=100"),
        (Chat(max_tokens=90), "max_tokens=90"),
        (Chat(overlong="split"), "overlong=split"),
    ]:
        with pytest.raises(DatasetError, match=f"options of Chat .*--chat TEMPLATE,{limit}"):
            make_loader(folder, **{**CHAT, "chat": chat}, lengths=out)


@pytest.mark.parametrize("overlong", ["drop", "truncate", "split"])
def test_long_documents_are_dropped_truncated_or_split(folder: str, overlong: Any) -> None:
    expected = {}
    for sample, messages in enumerate(MESSAGES):
        ids, labels = expected_document(TOKENIZER, messages)
        if len(ids) > 100 and overlong != "split":
            ends = [i + 1 for i in range(100) if labels[i] != -100 and labels[i + 1] == -100]
            cut = ends[-1] if ends and overlong == "truncate" else 0
            ids, labels = ids[:cut], labels[:cut]
        if ids:
            expected[sample] = ids, labels
    assert any(len(ids) > 100 for ids, _ in expected.values()) == (overlong == "split")
    options = {**CHAT, "chat": Chat(overlong=overlong, max_tokens=100), "seq_len": 400}
    make = ranks(folder, **options, packing="best_fit", epochs=1, tail="pad")
    found = documents_in(run_legs(make, [Leg(batches=None)]))
    assert found == expected
    if overlong == "truncate":
        eot = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
        assert all(labels[-1] in (eot, -100) for _, labels in found.values())


def test_a_state_reopens_its_run(folder: str, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    TOKENIZER.save_pretrained(tokenizer)
    options = {**CHAT, "tokenizer": str(tokenizer)}
    last = Chat(train="last")
    for data, chat in ((folder, last), (Stream(folder, chat=last), None)):
        with make_loader(data, **{**options, "chat": chat}) as loader:
            list(loader.take(1))
            state = loader.state_dict()
            [batch] = loader.take(1)
            expected = loader.trace(batch)
        assert [*trace_steps(open_run(state), range(2, 3), num_workers=0)] == [(2, expected)]


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([], "no messages"),
        ([{"role": "wizard", "content": "x"}], "wizard"),
        ([{"role": "user", "content": 3}], "3"),
        ("not JSON", "JSON"),
    ],
)
def test_a_bad_conversation_is_named_and_can_be_skipped(
    tmp_path: Path, messages: Any, what: str
) -> None:
    folder = write_conversations(tmp_path / "data", [*MESSAGES[:5], messages, *MESSAGES[5:9]])
    options = {**CHAT, "num_lanes": 1, "shuffle": False, "epochs": 1, "seq_len": 600}
    with (
        make_loader(folder, **options) as loader,
        pytest.raises(DatasetError, match=rf"(?s)sample \d+ of .*\(id '5'\).*{what}.*on_error"),
    ):
        list(loader)
    with make_loader(folder, **options, on_error="skip") as loader:
        list(loader)
        assert (loader.stats().documents, loader.stats().failed) == (9, 1)


def test_a_stream_whose_documents_all_lack_trained_tokens_ends_the_run(tmp_path: Path) -> None:
    folder = write_conversations(tmp_path / "silent", SILENT * 1_200)
    with (
        make_loader(folder, **CHAT) as loader,
        pytest.raises(DatasetError, match=r"first 1,000 documents of silent .* no trained tokens"),
    ):
        next(iter(loader))


def test_a_run_of_conversations_loads_a_name_once(
    folder: str, hub_snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_tokenizer().save_pretrained(hub_snapshot)
    found: list[str] = []

    def load(name: str) -> Any:
        found.append(name)
        return load_by_name(name)

    monkeypatch.setattr(tokenizer, "load_by_name", load)
    for chat in (Chat(), Chat(train="last")):
        streams = [Stream(folder, chat=chat), Stream(folder, name="all", chat=Chat(train="all"))]
        options: dict[str, Any] = {"tokenizer": "some/model", "num_workers": 0}
        CloudLoader(streams, seq_len=32, batch_size=1, local=tmp_path / "cache", **options).close()
    assert found == ["some/model"] * 2
    check_dataset(folder, tokenizer="some/model", chat=Chat(), processes=1, progress=False)
    assert found == ["some/model"] * 3


def test_all_workers_together_find_a_stream_whose_documents_all_lack_trained_tokens(
    folder: str, tmp_path: Path
) -> None:
    silent = write_conversations(tmp_path / "silent", SILENT * 1_200)
    options: dict[str, Any] = {**CHAT, "epochs": 1, "num_workers": 4, "batch_size": 4}
    with (
        make_loader([folder, silent], **options) as loader,
        pytest.raises(DatasetError, match=r"first 1,\d+ documents of silent .* no trained tokens"),
    ):
        list(loader)


@pytest.mark.parametrize("has_lengths", [False, True])
def test_a_run_ends_with_a_warning_if_no_document_of_a_small_stream_was_trained(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_lengths: bool
) -> None:
    silent = write_conversations(tmp_path / "silent", SILENT * 150)
    chat, out = Chat(max_tokens=CHAT["seq_len"]), str(tmp_path / "lengths")
    for each in (folder, silent) if has_lengths else ():
        count_tokens(each, tokenizer=TOKENIZER, chat=chat, out=out, progress=False, processes=1)
    options: dict[str, Any] = {**CHAT, "chat": chat, "epochs": 1, "tail": "pad"}
    make = ranks([folder, silent], **options, lengths=out if has_lengths else "off")
    run_leg(make, Leg(2, workers=2, batches=2))
    assert "left out" not in caplog.text
    run_leg(make, Leg(2, workers=2, batches=None))
    assert caplog.text.count("all of the first 150 documents of silent are left out") == 1


def test_options_that_contradict_each_other_are_refused(folder: str) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tokens_key": "ids"}, "chat and tokens_key are both set"),
        ({"transform": str}, "chat and transform are both set"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            CloudLoader(folder, **{**CHAT, **options}, batch_size=1)
    cases = [
        ({"tokens_key": "ids"}, "has both tokens_key and chat"),
        ({"text_key": "id"}, "has both chat and text_key"),
        ({"chat": "llama"}, r"chat of .* is 'llama'. Use Chat\(\)"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            Stream(folder, **{"chat": Chat(), **options})
