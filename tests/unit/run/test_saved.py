"""The lists and arrays of a state are read as they were written, and damaged ones are named."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import StreamChangedError
from cloudload.rows.packing.residue import encode_residue
from cloudload.run.lane_texts import LaneTexts
from cloudload.run.saved import (
    decode_residues,
    read_counts,
    read_cursors,
    read_numbers,
    read_pairs,
    read_sizes,
    read_tails,
)
from cloudload.run.state import encode_counts, encode_tails, join_pairs
from cloudload.stats import COUNTS

PAIRS = st.lists(st.tuples(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1)), max_size=4)


def encode(dtype: str, *numbers: int) -> str:
    return base64.b64encode(np.array(numbers, dtype).tobytes()).decode()


def state(num_lanes: int = 2, nodes: str = "1", packing: str = "concat", **more: Any) -> Any:
    base = {"num_lanes": num_lanes, "num_canonical_nodes": nodes, "packing": packing}
    return {**base, "residues": "", **more}


# ------------------------------------------------------------------------- cursors


@pytest.mark.parametrize("dtype", ["<i4", "<i8"])
def test_cursors_are_ordinals_and_offsets_by_component_and_lane(dtype: str) -> None:
    text = encode(dtype, 1, 2, 3, 4, 5, 6, 7, 8)
    assert read_cursors(state(nodes="1,1", cursors=text)).tolist() == [
        [[1, 2, 0], [3, 4, 0]],
        [[5, 6, 0], [7, 8, 0]],
    ]


def test_cursors_have_the_sizes_of_their_documents() -> None:
    text, sizes = encode("<i4", 1, 2, 3, 0), encode("<u2", 900, 0)
    found = read_cursors(state(cursors=text, document_sizes=sizes))
    assert found.tolist() == [[[1, 2, 900], [3, 0, 0]]]


@pytest.mark.parametrize("number", [3, 5, 9])
def test_cursors_of_another_number_of_lanes_are_damaged(number: int) -> None:
    with pytest.raises(StreamChangedError, match="bytes, but 2 cursors need 16 or 32"):
        read_cursors(state(cursors=encode("<i4", *range(number))))


@pytest.mark.parametrize(
    ("packing", "most"), [("concat", 1 << 38), ("one_per_row", 1 << 38), ("best_fit", 1 << 30)]
)
def test_an_ordinal_beyond_any_real_run_is_damaged(packing: str, most: int) -> None:
    last = read_cursors(state(packing=packing, cursors=encode("<i8", 0, 0, most, 0)))
    assert last[0, 1, 0] == most
    with pytest.raises(StreamChangedError, match=r"lane 1 is at \[\d+, 0\], which is beyond any"):
        read_cursors(state(packing=packing, cursors=encode("<i8", 0, 0, most + 1, 0)))


def test_an_offset_beyond_any_real_document_is_damaged() -> None:
    assert read_cursors(state(cursors=encode("<i8", 0, 1 << 40, 0, 0)))[0, 0, 1] == 1 << 40
    with pytest.raises(StreamChangedError, match="lane 0 is at"):
        read_cursors(state(cursors=encode("<i8", 0, (1 << 40) + 1, 0, 0)))


@given(
    cursors=st.lists(
        st.tuples(st.integers(0, 1 << 38), st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
        min_size=4,
        max_size=4,
    )
)
def test_cursors_are_read_as_lane_texts_write_them(cursors: list[tuple[int, int, int]]) -> None:
    array = np.array(cursors, np.int64).reshape(2, 2, 3)
    texts: dict[str, Any] = LaneTexts().encode(array, None)
    assert read_cursors(state(nodes="1,1", **texts)).tolist() == array.tolist()


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<u8"])
def test_sizes_have_the_width_that_fits_their_bytes(dtype: str) -> None:
    found = read_sizes({"document_sizes": encode(dtype, 9, 65_535)}, (1, 2))
    assert found.tolist() == [[9, 65_535]]
    assert found.dtype == np.int64


def test_an_older_state_has_no_sizes() -> None:
    assert read_sizes({}, (1, 2)).tolist() == [[0, 0]]
    assert read_sizes({"document_sizes": ""}, (1, 2)).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (encode("<u2", 1), "they have 2 bytes, but the only possible sizes are .4, 8, 16."),
        (encode("<u8", 1, (1 << 40) + 1), "1,099,511,627,777 tokens are beyond any real"),
        ("!", "they are not base64"),
        (7, "they are not base64"),
    ],
)
def test_damaged_sizes_are_named(text: Any, message: str) -> None:
    with pytest.raises(StreamChangedError, match=f"document_sizes: {message}"):
        read_sizes({"document_sizes": text}, (1, 2))


# ------------------------------------------------------------------------- counts


def test_counts_without_failed_documents_are_six_numbers_as_in_older_states() -> None:
    counts = np.array([[1, 2, 3, 4, 5, 6, 0, 0], [7, 0, 0, 0, 0, 0, 0, 0]])
    assert encode_counts(counts) == "[[1,2,3,4,5,6],[7,0,0,0,0,0]]"
    assert read_counts(encode_counts(counts)).tolist() == counts.tolist()


def test_failed_documents_of_one_stream_add_a_number_to_all() -> None:
    counts = np.array([[1, 2, 3, 4, 5, 6, 0, 0], [7, 0, 0, 0, 0, 0, 8, 0]])
    assert encode_counts(counts) == "[[1,2,3,4,5,6,0],[7,0,0,0,0,0,8]]"
    assert read_counts(encode_counts(counts)).tolist() == counts.tolist()


def test_deselected_documents_of_one_stream_add_two_numbers_to_all() -> None:
    counts = np.array([[1, 2, 3, 4, 5, 6, 0, 0], [7, 0, 0, 0, 0, 0, 0, 9]])
    assert encode_counts(counts) == "[[1,2,3,4,5,6,0,0],[7,0,0,0,0,0,0,9]]"
    assert read_counts(encode_counts(counts)).tolist() == counts.tolist()


def test_the_largest_count_is_2_to_62() -> None:
    assert read_counts(f"[[{1 << 62},0,0,0,0,0]]")[0, 0] == 1 << 62
    with pytest.raises(
        StreamChangedError, match=r"counts: .*not whole numbers from 0 to 4,611,686"
    ):
        read_counts(f"[[{(1 << 62) + 1},0,0,0,0,0]]")


@pytest.mark.parametrize(
    "text", ["[[0,0,0,0,0]]", "[[0,0,0,0,0,0,0,0,0]]", "[0,0]", "[[[0]]]", "7"]
)
def test_counts_of_another_shape_are_damaged(text: str) -> None:
    with pytest.raises(StreamChangedError, match=r"counts: their shape is .* has 6 to 8 numbers"):
        read_counts(text)


@pytest.mark.parametrize("text", [None, "", "[[0,", "NaN", '"x"', "[[0,0,0],[0]]", "{}"])
def test_counts_that_are_not_a_table_are_damaged(text: Any) -> None:
    with pytest.raises(StreamChangedError, match="counts: "):
        read_counts(text)
    assert len(COUNTS) == 8


# ------------------------------------------------------------------------- numbers and pairs


def test_numbers_are_separated_by_commas() -> None:
    assert read_numbers("num_canonical_nodes", "64,8") == (64, 8)
    assert read_numbers("num_canonical_nodes", "0" * 17 + "7") == (7,)


@pytest.mark.parametrize("text", ["", "1,", "-1", "1.0", " 1", "1" * 19, "१", None, 7])
def test_other_text_is_not_a_list_of_numbers(text: Any) -> None:
    with pytest.raises(StreamChangedError, match=r"skipped: .* is not a list of whole numbers"):
        read_numbers("skipped", text)


@given(pairs=PAIRS)
def test_pairs_are_read_as_they_were_joined(pairs: list[tuple[int, int]]) -> None:
    assert read_pairs("tail", join_pairs(pairs)) == tuple(pairs)


def test_pairs_are_joined_by_colons_and_commas() -> None:
    assert join_pairs([(512, 100), (1024, 3)]) == "512:100,1024:3"
    assert join_pairs([]) == ""
    assert read_pairs("tail", "") == ()


@pytest.mark.parametrize("text", ["1", "1:2:3", "1:-2", "a:b", ":", "1:2;3:4", None])
def test_other_text_is_not_a_list_of_pairs(text: Any) -> None:
    with pytest.raises(StreamChangedError, match=r"tail: .* is not a list of pairs"):
        read_pairs("tail", text)


@given(tails=st.lists(PAIRS, min_size=2, max_size=3).filter(any))
def test_tails_of_streams_are_read_as_they_were_encoded(tails: list[list[tuple[int, int]]]) -> None:
    fields = encode_tails(tuple(map(tuple, tails)))
    assert fields["stream_tails"].count(";") == len(tails) - 1
    assert read_tails({"tail": "", **fields}, len(tails)) == tuple(map(tuple, tails))


def test_the_only_tail_of_a_corpus_has_a_field_of_its_own() -> None:
    fields = encode_tails((((5, 2), (7, 1)),))
    assert fields == {"tail": "5:2,7:1"}
    assert read_tails({**fields, "table_rows": 6, "rows": 9}, 1) == (((5, 2), (7, 1)),)


def test_a_state_without_tails_has_none() -> None:
    assert encode_tails(()) == {}
    assert encode_tails(((), ())) == {}
    assert read_tails({"tail": ""}, 2) == ()


@pytest.mark.parametrize("text", ["5:1", "5:1;;", 7])
def test_tails_of_another_number_of_streams_are_damaged(text: Any) -> None:
    with pytest.raises(StreamChangedError, match=r"stream_tails: .* tails for 2 streams"):
        read_tails({"tail": "", "stream_tails": text}, 2)


# ------------------------------------------------------------------------- residues


def lanes(number: int, ordinal: int = 9) -> np.ndarray:  # type: ignore[type-arg]
    """Cursors of one component, all at document `ordinal`."""
    cursors = np.zeros((1, number, 3), np.int64)
    cursors[..., 0] = ordinal
    return cursors


def residues_of(number: int) -> np.ndarray:  # type: ignore[type-arg]
    """Residues of different sizes, of one component."""
    residues = np.empty((1, number), object)
    for lane in range(number):
        residues[0, lane] = encode_residue([(1, 0, lane + 1)]) if lane % 3 else b""
    return residues


@pytest.mark.parametrize("number", [1, 15, 16, 17, 33])
def test_residues_are_read_as_lane_texts_write_them_in_chunks_of_16(number: int) -> None:
    cursors, residues = lanes(number), residues_of(number)
    text = LaneTexts().encode(cursors, residues)["residues"]
    assert text.count(".") == (number - 1) // 16
    found = decode_residues({"packing": "best_fit", "residues": text}, cursors)
    assert found is not None
    assert found.tolist() == residues.tolist()


def one_chunk(*residues: bytes) -> str:
    """Residues as an older state has them: in a single chunk."""
    numbers = np.array([len(each) for each in residues], "<i4").tobytes() + b"".join(residues)
    planes = np.frombuffer(numbers, np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(zlib.compress(planes)).decode()


def test_an_older_state_has_one_chunk_for_all_lanes() -> None:
    residues = residues_of(33)
    state = {"packing": "best_fit", "residues": one_chunk(*residues[0].tolist())}
    found = decode_residues(state, lanes(33))
    assert found is not None
    assert found.tolist() == residues.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{one_chunk(b'', b'')}.{one_chunk()}", "they have 2 chunks, which is wrong for 2 lanes"),
        (one_chunk(b""), "they unpack to 4 bytes"),
        (one_chunk(b"", b"", b"")[:-4], "residues: "),
        (base64.b64encode(zlib.compress(bytes(9))).decode(), "they unpack to 9 bytes, which is no"),
        (base64.b64encode(b"plain").decode(), "residues: "),
        ("%", "they are not base64"),
        (None, "they are not base64"),
    ],
)
def test_damaged_residues_are_named(text: Any, message: str) -> None:
    with pytest.raises(StreamChangedError, match=message):
        decode_residues({"packing": "best_fit", "residues": text}, lanes(2))


def test_sizes_that_do_not_add_up_are_damaged() -> None:
    planes = np.array([4, 8, 1, 2], "<i4").view(np.uint8).reshape(-1, 4).T.tobytes()
    text = base64.b64encode(zlib.compress(planes)).decode()
    with pytest.raises(StreamChangedError, match="do not add up to the 16 bytes"):
        decode_residues({"packing": "best_fit", "residues": text}, lanes(2))


def test_a_chunk_unpacks_to_at_most_one_span_for_each_document_read() -> None:
    """2 lanes at document 1: 8 bytes each for sizes and counts, and 16 for each span."""
    most = 2 * 8 + 2 * 16
    for size, is_possible in ((most, True), (most + 4, False)):
        text = base64.b64encode(zlib.compress(bytes(size))).decode()
        with pytest.raises(StreamChangedError) as error:
            decode_residues({"packing": "best_fit", "residues": text}, lanes(2, ordinal=1))
        assert ("more than 48 bytes" not in str(error.value)) == is_possible


def test_other_packings_have_no_residues() -> None:
    assert decode_residues(state(), lanes(2)) is None
    with pytest.raises(StreamChangedError, match="residues: packing 'concat' has no residues"):
        decode_residues(state(residues="AAAA"), lanes(2))
