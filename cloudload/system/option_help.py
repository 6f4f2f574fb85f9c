'''Explain a class's options from the docstrings of its fields, and suggest names for unknown ones.

    seq_len: int            ─► explained ─►    Args:
    """Tokens per row."""                          seq_len: Tokens per row.

    CloudLoader(url, shuffle_seed=17)
    TypeError: CloudLoader has no argument 'shuffle_seed'. Use seed

Names from Streaming, llm-foundry, Hugging Face, torch and Megatron are known. Other names are
matched by spelling. Decorated functions keep their signature for `help`, editors and type checkers.
'''

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def explained(cls: C) -> C:
    """Add an `Args` section with all fields to a dataclass's docstring, and return the class."""
    text = inspect.cleandoc(f"{cls.__doc__}")
    cls.__doc__ = f"{text}\n\nArgs:\n{explain_fields(fields(cls), field_docs(cls))}"
    return cls


def explained_by(*configs: type) -> Callable[[C], C]:
    """Return a decorator that replaces `{options}` in a class's docstring with its options.

    The options are the fields of `configs` that the class takes as arguments.
    """

    def explain(cls: C) -> C:
        taken = inspect.signature(cls).parameters
        options = [
            option for config in configs for option in fields(config) if option.name in taken
        ]
        docs = {name: text for config in configs for name, text in field_docs(config).items()}
        text = inspect.cleandoc(f"{cls.__doc__}")
        cls.__doc__ = text.replace("    {options}", explain_fields(options, docs))
        return cls

    return explain


def explain_fields(options: Iterable[Field[Any]], docs: dict[str, str]) -> str:
    """Format options as the indented lines of an `Args` section.

    An option's default is added, unless it is None and the option's text explains it.
    """
    lines = []
    for option in options:
        text = f"{option.name}: {docs[option.name]}{_explain_default(option, docs[option.name])}"
        lines += textwrap.wrap(
            text,
            width=96,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _explain_default(option: Field[Any], text: str) -> str:
    is_explained = option.default is None and ("None" in text or "default" in text)
    return "" if option.default is MISSING or is_explained else f" Default: `{option.default!r}`."


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a class, by field name, as one line.

    The text of a field without a docstring, or whose source cannot be read, is empty.
    """
    found = dict.fromkeys((option.name for option in fields(cls)), "")
    for statement in _parse_module(cls.__module__):
        if isinstance(statement, ast.ClassDef) and statement.name == cls.__name__:
            for field, text in zip(statement.body, statement.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = _text_of(text)
    return found


def argument_docs(callee: Callable[..., Any]) -> dict[str, str]:
    """Return the entries of the `Args` section of a docstring, by argument, as one line each."""
    found: dict[str, str] = {}
    name = ""
    _, _, section = inspect.cleandoc(f"{callee.__doc__}").partition("\nArgs:\n")
    for line in section.partition("\n\n")[0].splitlines():
        if entry := re.match(r"    (\w+): ", line):
            name = entry[1]
        found[name] = (
            f"{found.get(name, '')} {line.removeprefix(entry[0] if entry else '').strip()}"
        )
    return {name: text.strip() for name, text in found.items()}


def _text_of(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


@cache
def _parse_module(name: str) -> list[ast.stmt]:
    try:
        return ast.parse(Path(str(sys.modules[name].__file__)).read_text("utf-8")).body
    except OSError:
        return []


# our name of an option, then its names in other libraries
_ELSEWHERE = """
data: dataset datasets data_path data_dir train_data remote streams path url blend
inputs: source sources src input files data dataset
out: output output_dir out_dir out_root dest destination target
tokenizer: tokenizer_name tokenizer_path tokenizer_name_or_path processing_class tok
seq_len: sequence_length seq_length max_seq_len max_seq_length max_length context_length
seq_len: block_size ctx_len n_ctx
batch_size: per_device_train_batch_size per_device_batch_size local_batch_size
batch_size: device_batch_size train_batch_size bs
global_batch_size: global_train_batch_size gbs
micro_batch_size: device_train_microbatch_size train_micro_batch_size_per_gpu mbs
local: cache_dir cache cache_folder
packing: packing_strategy pack packing_mode
schedule: weights probabilities mixture
seed: shuffle_seed random_seed data_seed rng_seed
shuffle_algo: shuffle_algorithm sampler
shuffle_block_size: buffer_size shuffle_buffer_size block_size
num_canonical_nodes: ncn
epochs: num_epochs num_train_epochs max_epochs repeat
tokens_key: tokens_column token_column token_key input_ids_column input_ids_key input_ids
tokens_dtype: token_dtype token_encoding_type ids_dtype dtype
strip_tokens: drop_list drop_tokens remove_tokens
text_key: text_column text_field dataset_text_field column content_key field
encode: encoder encode_fn tokenize_fn tokenize tokenization_fn
transform: map_fn preprocess preprocess_fn preprocessing_fn filter_fn
on_error: errors ignore_errors skip_errors skip_bad skip_bad_documents on_bad error_handling
bos: bos_token bos_text add_bos_token add_bos bos_id
eos: eos_token eos_text add_eos_token add_eos eos_id
pad_id: pad_token_id padding_value pad_token padding_id
num_workers: nworkers n_workers workers worker dataloader_num_workers num_proc
prefetch_batches: prefetch prefetch_factor dataloader_prefetch_factor
processes: num_proc num_workers workers jobs n_jobs nprocs
dataset: data remote url path folder data_dir data_path
sample: samples num_samples num_shards max_shards shards
source: yaml yaml_path config cfg config_path path file
loader: section loader_name split
num_batches: steps num_steps max_steps batches n_batches
dtype: tokens_dtype token_dtype token_encoding_type
verify: validate_hash check_hash checksum
retry: timeout download_timeout download_retry retries max_retries
start_method: multiprocessing_context mp_context
dp_rank: rank process_index shard_id data_parallel_rank
dp_world_size: world_size num_replicas num_shards process_count data_parallel_size dp_size
device_mesh: mesh replication
pin_memory: dataloader_pin_memory
remote: url path data data_dir
proportion: weight probability ratio
choose: samples num_samples
text_key: text content
hashes: hash
shard_bytes: size_limit shard_size max_shard_size
keep: columns keep_columns extra_columns
timeout_s: timeout connect_timeout read_timeout download_timeout
deadline_s: deadline total_timeout max_time
pause_s: pause backoff sleep delay backoff_factor
"""

# advice for arguments of other libraries without a counterpart; `{name}` is the argument's name
_ADVICE = {
    **dict.fromkeys(("split", "proportion", "choose"), "Pass Stream(url, {name}=…) as data"),
    "weight": "Pass Stream(url, proportion=…) as data",
    "repeat": "Pass Stream(url, repeat=…) as data, or epochs=… to the loader",
    "drop_last": "Use tail='drop' or tail='pad'",
    "dataloader_drop_last": "Use tail='drop' or tail='pad'",
    "infinite": "Omit epochs to repeat the data forever",
    "epoch_size": "Pass Stream(url, choose=…) as data",
    "collate_fn": "Batches are already tensors. To change texts, use transform",
    "persistent_workers": "Use stop_every. Workers then keep running between passes",
    "sampling_method": "Each epoch reads a new selection of a stream's samples",
    "sampling_granularity": "Samples are selected one by one",
    "batching_method": "All batches follow one order. To mix streams, use Stream(proportion=…)",
    "partition_algo": "The order of documents does not depend on the partition",
    "allow_unsafe_types": "Columns of pickled values cannot be read",
    "keep_zip": "The cache keeps only raw shards",
    "device": "Move each batch with batch.to(device)",
    "compression": "The compression is read from the dataset's index",
    "max_steps": "Use loader.take(n)",
    "streaming": "Data is always streamed",
}
_PROGRESS = dict.fromkeys(
    ("progress_bar", "verbose", "quiet"), "Use progress=True or progress=False"
)
_ADVICE_BY_CALLEE = {
    "check_dataset": _PROGRESS,
    "config_from_yaml": {
        "batch_size": "Pass it to CloudLoader with the options that config_from_yaml returns",
    },
    "export_rows": {
        **dict.fromkeys(
            ("state", "tokenizer", "seq_len", "packing", "data"), "Pass it to CloudLoader"
        ),
        "start": "Call loader.seek(row) first",
        "exist_ok": "Use overwrite=True to replace a dataset",
    },
    "Stream": {
        **dict.fromkeys(("local", "cache_limit", "seq_len", "tokenizer"), "Pass it to CloudLoader"),
        **dict.fromkeys(
            ("download_retry", "download_timeout", "validate_hash", "shuffle", "text_key"),
            "This option applies to the whole loader. See help(CloudLoader)",
        ),
    },
    "convert_to_mds": {
        **dict.fromkeys(
            ("seq_len", "concat_tokens", "bos_text", "eos_text"),
            "Shards contain raw text. CloudLoader tokenizes and packs the text",
        ),
        **_PROGRESS,
        "exist_ok": "Use overwrite=True to replace a dataset",
        "shuffle": "CloudLoader shuffles. Documents are written in the order of the input",
    },
}


def suggests_names(function: F) -> F:
    """Decorate a function so that its `TypeError` for an unknown keyword suggests a known one."""
    name = function.__qualname__.removesuffix(".__init__")
    known = [each for each in inspect.signature(function).parameters if each != "self"]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if unknown := [each for each in kwargs if each not in known]:
            raise TypeError(explain_unknown(name, unknown, known))
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def suggests_fields(cls: C) -> C:
    """Decorate a dataclass as `suggests_names` decorates a function."""
    cls.__init__ = suggests_names(cls.__init__)  # type: ignore[misc]
    return cls


def explain_unknown(callee: str, unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return one line for each unknown keyword of `callee`, with what to use instead."""
    known = list(known)
    lines = [
        f"{callee} has no argument {name!r}. {_advise(callee, name, known)}" for name in unknown
    ]
    return "\n".join(lines)


def _advise(callee: str, name: str, known: list[str]) -> str:
    if advice := _ADVICE_BY_CALLEE.get(callee, {}).get(name):
        return advice
    same = [ours for ours in names_of_ours(name) if ours in known]
    if same:
        return f"Use {' or '.join(same)}"
    close = get_close_matches(name, known, n=2, cutoff=0.7)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    if callee == "CloudLoader" and name in _ADVICE:
        return _ADVICE[name].format(name=name)
    elsewhere = get_close_matches(name, _find_names(), n=1, cutoff=0.85)
    same = [ours for near in elsewhere for ours in _find_names()[near] if ours in known]
    if same:
        return f"Did you mean {' or '.join(same)}?"
    return f"See help({callee}) for its arguments"


@functools.cache
def _find_names() -> dict[str, list[str]]:
    """Map each option name of other libraries to our names for the same option."""
    found: dict[str, list[str]] = {}
    for line in _ELSEWHERE.strip().splitlines():
        ours, _, names = line.partition(":")
        for name in names.split():
            found.setdefault(name, []).append(ours)
    return found


def names_of_ours(name: str) -> list[str]:
    """Return our names for an option that other libraries call `name`."""
    return _find_names().get(name, [])
