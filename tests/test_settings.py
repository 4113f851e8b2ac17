"""Settings: defaults, public limits, checked values, one sentence for a bad one."""

from pathlib import Path

import pytest

from kvviz.errors import InputError
from kvviz.settings import ROWS, Settings, settings


def test_every_row_is_a_field_and_has_help():
    assert {row.name for row in ROWS} == set(Settings.__dataclass_fields__)
    assert all(row.help.endswith(".") and row.expects for row in ROWS)


def test_defaults():
    found = settings({"HOME": "/home/somebody"})
    assert (found.public, found.prefill_chunk, found.max_tokens) == (False, 2048, 131072)
    assert found.cache.parts[:3] == ("/", "home", "somebody")


def test_a_space_is_public_with_lower_limits_unless_told_otherwise():
    space = settings({"SPACE_ID": "somebody/space"})
    assert space.public and space.max_tokens == 8192 and space.max_new_tokens == 128
    assert not settings({"SPACE_ID": "somebody/space", "KVVIZ_PUBLIC": "0"}).public
    raised = settings({"KVVIZ_PUBLIC": "yes", "KVVIZ_MAX_TOKENS": "16384"})
    assert raised.public and raised.max_tokens == 16384


def test_cache_folder():
    assert settings({"KVVIZ_CACHE": "/data/kv"}).cache == Path("/data/kv")
    assert settings({"XDG_CACHE_HOME": "/x", "HOME": "/h"}).cache == Path("/x/kvviz")


def test_sizes_take_units():
    assert settings({"KVVIZ_WAVE_BYTES": "1.5 GiB"}).wave_bytes == 3 * 2**29
    assert settings({"KVVIZ_WAVE_BYTES": "8m"}).wave_bytes == 8 * 2**20
    assert settings({"KVVIZ_WAVE_BYTES": "5000000"}).wave_bytes == 5_000_000


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KVVIZ_PUBLIC", "maybe"),
        ("KVVIZ_MAX_TOKENS", "lots"),
        ("KVVIZ_MAX_TOKENS", "3"),
        ("KVVIZ_MAX_TOKENS", "-1"),
        ("KVVIZ_WAVE_BYTES", "nan"),
        ("KVVIZ_WAVE_BYTES", "inf"),
        ("KVVIZ_WAVE_BYTES", "8 X"),
        ("KVVIZ_THREADS", "-2"),
    ],
)
def test_a_bad_value_is_one_sentence(variable, value):
    with pytest.raises(InputError, match=f"^{variable} is '{value}'; it must be .*[.]$"):
        settings({variable: value})


def test_an_empty_variable_counts_as_unset():
    assert settings({"KVVIZ_MAX_TOKENS": " "}).max_tokens == 131072
