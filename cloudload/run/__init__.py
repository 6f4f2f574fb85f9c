"""The recipe of a run, which determines its rows, and the position that the run has reached.

    RowsConfig, tokenizer, data ─► Recipe          layout, components, mixture: immutable
                                     │
                                  Position         rows delivered, a cursor for every lane
                                     │
             build_state ◄───────────┴───────────► a resume
             one flat dict of JSON types           read_state, resume_run

    recipe            all that determines the rows
    components        streams that share an order
    sources           where data and tokenizer are
    glob_streams      a stream for each dataset
    position          rows delivered, cursors
    state             position and recipe as a dict
    state_fields      fields, and errors about them
    lane_texts        lanes of a state as text
    saved             a decoded state
    resumed           the recipe and the position of a resume
    removal           documents removed from a position
    changes           what may change on resume
    streaming_arguments  options of a StreamingDataset
    streaming_state      its state
    training_yaml        llm-foundry's YAML
    lengths           positions from token lengths

A recipe does not depend on the world size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.run import state_fields
    from cloudload.run.changes import ACCEPTABLE_FIELDS, FIELD_MEANINGS
    from cloudload.run.components import Component, order_corpus
    from cloudload.run.glob_streams import find_streams
    from cloudload.run.lengths import length_files, lengths_index
    from cloudload.run.lengths.ending import Ending, Tails, end_corpus
    from cloudload.run.lengths.open import find_lengths, find_resumed_lengths, open_lengths
    from cloudload.run.lengths.row_finder import RowFinder
    from cloudload.run.lengths.rows_of_document import find_spans
    from cloudload.run.lengths.run_lengths import RunInputs, RunLengths
    from cloudload.run.lengths.sizes import DocumentSizes, LaneSizes
    from cloudload.run.position import MOST_ROWS, LaneArrays, LaneLog, Position, join_ranges
    from cloudload.run.recipe import (
        Recipe,
        frame_of,
        mixture_of,
        open_recipe,
        open_recipe_without_data,
        open_tokenizer,
    )
    from cloudload.run.resumed import find_saved_shards, resume_run
    from cloudload.run.saved import Saved, read_state
    from cloudload.run.sources import read_sources
    from cloudload.run.state import State, build_state
    from cloudload.run.streaming_arguments import adopt_streaming
    from cloudload.run.streaming_state import start_from_streaming
    from cloudload.run.training_yaml import config_from_yaml, explain_yaml_error
else:
    __getattr__, __dir__ = open_door(__name__)
