"""Documents to rows of tokens.

    text ─► tokenization ─► token IDs ─► packing ─► rows, and the spans that they are made of
      ▲
     chat ◄─ conversations

    tokenization  text to token IDs        packing  documents to rows
    chat          conversations to text    trained  which tokens are trained
    fill_middle   documents that are cut

Nothing here depends on ranks, workers, or the order of documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.rows.chat import conversation
    from cloudload.rows.chat.chat_template import ChatTemplate
    from cloudload.rows.chat.conversation import ChatError
    from cloudload.rows.chat.renderer import Renderer, load_template
    from cloudload.rows.fill_middle import MiddleRule, find_rule
    from cloudload.rows.packing import best_fit_lane, lane_packer, tables
    from cloudload.rows.packing.best_fit_lanes import BestFitLanes
    from cloudload.rows.packing.concat_lanes import ConcatLanes
    from cloudload.rows.packing.fill import Framing, fill_rows, list_spans, row_lengths
    from cloudload.rows.packing.packers import Packing
    from cloudload.rows.packing.residue import (
        EMPTY_GROUP,
        decode_residue,
        encode_residue,
        list_residue_spans,
        residue_spans,
        split_residues,
        unpack_residue,
    )
    from cloudload.rows.packing.tail import (
        Stages,
        Tail,
        counts_of_sizes,
        next_stages,
        pack_tail,
        take_rows,
    )
    from cloudload.rows.tokenization.backend import Choice, choose_backend, log_choice
    from cloudload.rows.tokenization.encoders import DocumentTokenizer, decode_ids
    from cloudload.rows.tokenization.framing import TokenName
    from cloudload.rows.tokenization.loading import load_hf, preload, start_loading
    from cloudload.rows.tokenization.other_libraries import list_byte_letters
    from cloudload.rows.tokenization.tokenizer import (
        WITHOUT_TOKENIZER,
        TokenizerSpec,
        find_tokenizer,
        frame_without_tokenizer,
        load_tokenizer,
    )
    from cloudload.rows.trained import (
        PAD_IN_DOCUMENT,
        hide_untrained,
        ids_of,
        mark_untrained,
    )
else:
    __getattr__, __dir__ = open_door(__name__)
