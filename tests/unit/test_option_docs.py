"""Every option is explained once: the loader's signature, its configs and its help agree."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

import pytest

from cloudload import Chat, CloudLoader, Retry, Stream
from cloudload.config import DeliveryConfig, RowsConfig
from cloudload.segments import FIELDS
from cloudload.system.option_help import field_docs

NOT_FIELDS = {"self", "data", "tokenizer", "device_mesh"}
NOT_OPTIONS = {"streams", "has_mesh"}
PARAMETERS = inspect.signature(CloudLoader.__init__).parameters
TYPES = get_type_hints(CloudLoader.__init__)
DECLARED = get_type_hints(RowsConfig) | get_type_hints(DeliveryConfig)
OPTIONS = [
    option
    for option in (*fields(RowsConfig), *fields(DeliveryConfig))
    if option.name not in NOT_OPTIONS
]


def test_every_option_is_a_field_of_one_config() -> None:
    assert sorted(option.name for option in OPTIONS) == sorted(PARAMETERS.keys() - NOT_FIELDS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_signature_and_config_agree(option: Field[Any]) -> None:
    parameter = PARAMETERS[option.name]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    if option.name == "retry":  # the default None means a new Retry()
        assert (TYPES["retry"], parameter.default) == (Retry | None, None)
        return
    assert TYPES[option.name] == DECLARED[option.name]
    default = inspect.Parameter.empty if option.default is MISSING else option.default
    assert parameter.default == default


@pytest.mark.parametrize("cls", [Chat, Stream, Retry, RowsConfig, DeliveryConfig])
def test_help_explains_every_field(cls: type) -> None:
    for name, text in field_docs(cls).items():
        assert len(text) > 10, f"{cls.__name__}.{name} has no docstring"
        assert f"\n    {name}: " in str(cls.__doc__)


@pytest.mark.parametrize("name", sorted(PARAMETERS.keys() - {"self", "dp_rank"}))
def test_help_of_the_loader_explains_every_argument(name: str) -> None:
    assert str(CloudLoader.__doc__).count(f"\n    {name}: ") == 1


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_batch_is_explained(field: str) -> None:
    assert f"`{field}`" in field_docs(DeliveryConfig)["fields"]
