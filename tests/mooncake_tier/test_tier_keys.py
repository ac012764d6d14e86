"""Keys: one for each set of fields, the same in every process, and no field left out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tier_fields import NAMESPACE, fields

from mooncake_tier.errors import KeyRefused
from mooncake_tier.keys import (
    HASH_ALGORITHMS,
    VERSION,
    CachePage,
    NamespaceFields,
    Rank,
    block_key,
    namespace,
    namespace_pattern,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mooncake_tier.md"
HASH = bytes(range(32))

#: Another valid value for each field, with what has to change beside it.
OTHERS: dict[str, dict[str, Any]] = {
    "model": {"model": "someone/GLM-5.3"},
    "revision": {"revision": "0a1b2c3e"},
    "weights": {"weights": "sha256-77ab"},
    "adapter": {"adapter": "coder@2"},
    "cache_dtype": {"cache_dtype": "nvfp4_ds_mla"},
    "codec": {"codec": "nvfp4_ds_mla-352-1/search/unfolded"},
    "layout": {"layout": "LBNHC"},
    "caches": {"caches": fields()["caches"][::-1]},
    "mla_layers": {"mla_layers": 2, "caches": [*fields()["caches"][:2], fields()["caches"][3]]},
    "indexer_layers": {"indexer_layers": 0, "caches": [*fields()["caches"][:1], *fields()["caches"][2:]]},
    "mtp_layers": {"mtp_layers": 0, "mla_layers": 2, "caches": fields()["caches"][:3]},
    "block_size": {"block_size": 128},
    "chunk_blocks": {"chunk_blocks": 16},
    "tp_size": {"tp_size": 8},
    "pp_size": {"pp_size": 2},
    "dcp_size": {"dcp_size": 2},
    "pcp_size": {"pcp_size": 2},
    "hash_algorithm": {"hash_algorithm": "sha256_cbor"},
    "hash_seed": {"hash_seed": "7"},
    "checksum": {"checksum": "none"},
}


def test_every_field_has_another_value_here() -> None:
    assert set(OTHERS) == {field.name for field in dataclasses.fields(NamespaceFields)} == set(fields())


@pytest.mark.parametrize("name", OTHERS)
def test_another_value_of_one_field_is_another_namespace(name: str) -> None:
    assert namespace(**fields(**OTHERS[name])) != namespace(**fields())


@pytest.mark.parametrize("change", [{"name": "x"}, {"nbytes": 36_865}, {"offset": 1}])
@pytest.mark.parametrize("at", range(4))
def test_another_page_geometry_is_another_namespace(at: int, change: dict[str, Any]) -> None:
    caches = fields()["caches"]
    caches[at] |= change

    assert namespace(**fields(caches=caches)) != namespace(**fields())


_texts = st.text(min_size=1, max_size=12).filter(lambda text: text.strip())
_free: dict[str, Any] = dict.fromkeys(("model", "revision", "weights", "layout", "hash_seed"), _texts)
_free |= {name: st.text(max_size=12).filter(lambda t: t == "" or bool(t.strip())) for name in ("adapter", "codec")}
_free |= {name: st.integers(1, 1 << 40) for name in ("block_size", "chunk_blocks", "tp_size", "pp_size", "dcp_size")}
_drawn = st.fixed_dictionaries({}, optional=_free)


@settings(max_examples=100, deadline=None)
@given(_drawn, _drawn)
def test_namespaces_are_equal_exactly_if_all_fields_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Text that looks like another field's, quotes, separators and lone surrogates included."""
    a, b = fields(**one), fields(**other)

    assert (namespace(**a) == namespace(**b)) == (a == b)


_ranks = st.builds(Rank, **{name: st.integers(0, 300) for name in ("tp", "pp", "dcp", "pcp", "group")})
_keys = st.tuples(st.sampled_from([NAMESPACE, NAMESPACE[:-1] + "0"]), st.binary(min_size=16, max_size=64), _ranks)


@settings(max_examples=100, deadline=None)
@given(_keys, _keys)
def test_block_keys_are_equal_exactly_if_namespace_hash_and_rank_are(
    one: tuple[str, bytes, Rank], other: tuple[str, bytes, Rank]
) -> None:
    assert (block_key(*one) == block_key(*other)) == (one == other)


def test_a_namespace_is_the_digest_of_canonical_json() -> None:
    """Anyone can make it: SHA-256 of the fields as sorted JSON without spaces, 128 bits of it."""
    text = json.dumps({**fields(), "version": VERSION}, sort_keys=True, separators=(",", ":"))

    assert namespace(**fields()) == f"mt{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    assert block_key(NAMESPACE, HASH, Rank(tp=3, pp=1, dcp=2, pcp=4, group=5)) == (
        f"{NAMESPACE}/g5t3p1d2c4/000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    )
    assert block_key(NAMESPACE, HASH) == block_key(NAMESPACE, HASH, Rank())


def test_two_processes_make_the_same_key() -> None:
    here = Path(__file__).parent
    code = (
        f"import sys; sys.path.insert(0, {str(here)!r})\n"
        "from tier_fields import fields\nfrom mooncake_tier.keys import namespace\nprint(namespace(**fields()))"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert made == {namespace(**fields())}


@pytest.mark.parametrize("name", list(fields()))
def test_a_missing_field_is_refused_by_name(name: str) -> None:
    given = fields()
    del given[name]

    with pytest.raises(KeyRefused, match=f"lacks \\['{name}'\\]"):
        namespace(**given)


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(KeyRefused, match="unknown \\['dtype'\\]"):
        namespace(**fields(), dtype="fp8")
    with pytest.raises(KeyRefused, match="caches lacks \\['mtp'\\] and has the unknown \\['mpt'\\]"):
        namespace(**fields(caches=[{"name": "a", "kind": "mla", "mpt": False, "nbytes": 1, "offset": 0}]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": " "}, "model=' '"),
        ({"revision": ""}, "revision=''"),
        ({"weights": None}, "weights=None"),
        ({"adapter": " "}, "adapter=' '"),
        ({"codec": 3}, "codec=3"),
        ({"block_size": 0}, "block_size=0"),
        ({"block_size": 64.0}, "block_size=64.0"),
        ({"tp_size": True}, "tp_size=True"),
        ({"tp_size": 1 << 41}, "tp_size="),
        ({"hash_algorithm": "xxhash"}, "hash_algorithm='xxhash'"),
        ({"checksum": "crc"}, "checksum='crc'"),
        ({"cache_dtype": "auto"}, "cache_dtype='auto'"),
        ({"caches": "mla"}, "caches='mla'"),
        ({"caches": [1]}, "caches="),
        ({"caches": fields()["caches"][:1] * 3}, "listed twice"),
        ({"indexer_layers": 2}, "indexer_layers=2, and caches holds 1"),
        ({"mla_layers": 4}, "mla_layers=4, and caches holds 3"),
        ({"mtp_layers": 0}, "mtp_layers=0, and caches holds 1"),
    ],
)
def test_an_impossible_field_is_refused_with_its_value(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyRefused, match=message):
        namespace(**fields(**changed))


@pytest.mark.parametrize("wrong", [{"kind": "mamba"}, {"mtp": 1}, {"nbytes": 0}, {"offset": -1}, {"name": ""}])
def test_an_impossible_cache_is_refused(wrong: dict[str, Any]) -> None:
    page: dict[str, Any] = {"name": "a", "kind": "mla", "mtp": False, "nbytes": 1, "offset": 0}

    with pytest.raises(KeyRefused, match=f"caches.{next(iter(wrong))}"):
        namespace(**fields(caches=(CachePage(**page | wrong),), mla_layers=1, indexer_layers=0, mtp_layers=0))


@pytest.mark.parametrize("wrong", ["mt1-123", "glm", NAMESPACE + "0", NAMESPACE.upper(), "mt0-" + "0" * 32, None])
def test_only_a_whole_namespace_makes_keys_and_patterns(wrong: Any) -> None:
    with pytest.raises(KeyRefused, match="namespace="):
        block_key(wrong, HASH)
    with pytest.raises(KeyRefused, match="namespace="):
        namespace_pattern(str(wrong))


@pytest.mark.parametrize("wrong", [b"", bytes(15), bytes(65), "00" * 16, bytearray(32)])
def test_only_a_whole_block_hash_makes_a_key(wrong: Any) -> None:
    with pytest.raises(KeyRefused, match="block_hash="):
        block_key(NAMESPACE, wrong)


def test_a_negative_rank_is_refused() -> None:
    with pytest.raises(KeyRefused, match="rank.tp=-1"):
        Rank(tp=-1)


def test_a_pattern_matches_the_keys_of_its_namespace_alone() -> None:
    other = NAMESPACE[:-1] + "0"
    pattern = namespace_pattern(NAMESPACE)

    assert re.search(pattern, block_key(NAMESPACE, HASH, Rank(tp=7)))
    assert not re.search(pattern, block_key(other, HASH))
    assert not re.search(pattern, "x" + block_key(NAMESPACE, HASH))


def test_the_page_lists_every_field_and_algorithm() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert {field.name for field in dataclasses.fields(NamespaceFields)} <= set(rows)
    assert {field.name for field in dataclasses.fields(CachePage)} <= set(rows)
    assert all(f"`{name}`" in PAGE.read_text(encoding="utf-8") for name in HASH_ALGORITHMS)
