"""A special token's name is encoded as that token only in texts that a transform marks."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import Text
from cloudload.config.choices import AUTO
from cloudload.rows.tokenization.encoders import DocumentTokenizer
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from testkit.corpora import EOS, EOS_ID, random_documents, write_mds
from testkit.loaders import ids_of, make_loader
from testkit.tokenizer_files import BACKENDS

TEXTS = [f"one{EOS}two", "three", f"{EOS}four", f"five{EOS}", EOS, "six"]


def mark_some(sample: dict[str, Any]) -> str:
    """A transform that marks texts that begin with `o`."""
    text = str(sample["text"])
    return Text(text, special_tokens=text.startswith("o"))


def mark_none(sample: dict[str, Any]) -> str:
    return Text(sample["text"])


def mark_all(sample: dict[str, Any]) -> str:
    return Text(sample["text"], special_tokens=True)


def count_special(folder: str, transform: Any, num_workers: int = 0) -> int:
    """Count the `<eos>` tokens in the texts of one epoch. The loader appends none."""
    options = {"transform": transform, "epochs": 1, "eos": None, "num_workers": num_workers}
    with make_loader(folder, **options) as loader:
        return sum(
            int((batch["input_ids"] == EOS_ID)[batch["labels"] >= 0].sum()) for batch in loader
        )


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> str:
    return write_mds(module_folder, TEXTS)


@pytest.mark.parametrize(
    ("transform", "expected"), [(None, 0), (mark_none, 0), (mark_some, 1), (mark_all, 4)]
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_only_marked_documents_have_special_tokens(
    folder: str, transform: Any, expected: int, num_workers: int
) -> None:
    assert count_special(folder, transform, num_workers) == expected


_PIECES = st.sampled_from(["<|endoftext|>", "<|pad|>", "the ", "\n", "<|", "é🦊"])
_DOCUMENTS = st.lists(st.tuples(st.lists(_PIECES, max_size=6), st.sampled_from("sup")), max_size=9)


@pytest.mark.parametrize("backend", BACKENDS)
@given(documents=_DOCUMENTS)
def test_marked_and_other_documents_of_one_batch_do_not_affect_each_other(
    tokenizer_folder: Path, backend: str, documents: list[tuple[list[str], str]]
) -> None:
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    texts: list[str] = []
    expected: list[list[int]] = []
    for pieces, kind in documents:
        text = "".join(pieces)
        texts.append(text if kind == "p" else Text(text, special_tokens=kind == "s"))
        reference.encode_special_tokens = kind != "s"
        expected.append(reference.encode(text, add_special_tokens=False).ids)
    tokenizer = DocumentTokenizer(load_tokenizer(tokenizer_folder, [(None, AUTO)]), backend)
    ids, offsets = tokenizer.encode_flat(texts)
    found = [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    assert found == expected


def test_what_is_derived_from_a_marked_text_is_not_marked() -> None:
    marked = Text("a<|endoftext|>", special_tokens=True)
    for derived in (marked + "b", marked[1:], marked.strip(), f"{marked}", str(marked)):
        assert type(derived) is str
    copy = pickle.loads(pickle.dumps(marked))
    assert (copy, copy.special_tokens) == (marked, True)
    assert not Text("a").special_tokens
    with pytest.raises(ValueError, match=r"special_tokens is 'no'. Use True or False"):
        Text("a", special_tokens="no")  # type: ignore[arg-type]


def test_marking_is_part_of_the_transforms_name(folder: str) -> None:
    from cloudload.errors import StreamChangedError

    state = make_loader(folder, transform=mark_all).state_dict()
    for other in (mark_none, mark_some, None):
        with pytest.raises(StreamChangedError, match="transform: saved"):
            make_loader(folder, transform=other).load_state_dict(state)


def test_a_run_with_marked_documents_resumes_to_the_same_rows(tmp_path: Path) -> None:
    texts = [text.replace(" ", EOS, 2) for text in random_documents(3, 60)]
    folder = write_mds(tmp_path / "data", texts)
    loader = make_loader(folder, transform=mark_all, seq_len=7)
    list(loader.take(5))
    state = loader.state_dict()
    rest = ids_of(loader.take(5))
    resumed = make_loader(folder, transform=mark_all, seq_len=7)
    resumed.load_state_dict(state)
    assert ids_of(resumed.take(5)) == rest
