"""Names of blocks: what decides the bytes of a block decides its key. Pure, standard library only.

A namespace stands for everything that the blocks of one deployment share; a block's key adds what tells its blocks
apart. Two deployments read each other's blocks only if every field is equal.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from mooncake_tier.errors import KeyRefused

__all__ = [
    "HASH_ALGORITHMS",
    "VERSION",
    "CachePage",
    "NamespaceFields",
    "Rank",
    "block_key",
    "key_prefix",
    "namespace",
    "namespace_pattern",
]

VERSION = 1
"""Grows when the meaning of a field, of a key or of an object's trailer changes."""

HASH_ALGORITHMS = ("sha256", "sha256_cbor")
"""vLLM's ``--prefix-caching-hash-algo`` values whose hashes nobody can make collide."""

KINDS = ("mla", "indexer")
CHECKSUMS = ("xxh3", "none")
_MOST = 1 << 40
_NAMESPACE = re.compile(r"mt[1-9][0-9]*-[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class CachePage:
    """One cache of the model, as it lies in a block.

    name: the layer's name in vLLM. kind: ``mla`` or ``indexer``. mtp: whether it belongs to a prediction layer.
    nbytes: bytes of its page. offset: bytes from the beginning of the block (or chunk) to the page.
    """

    name: str
    kind: str
    mtp: bool
    nbytes: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class NamespaceFields:
    """What the blocks of a deployment have in common. Every field is required; none has a default.

    model: the model's id, with its owner, such as ``zai-org/GLM-5.3``; never only the last part of a path.
    revision: the commit of the checkpoint, or any text that changes when the checkpoint does.
    weights: fingerprint of the weights that are served; `mooncake_tier.identity.weights.fingerprint` makes one.
    adapter: name and revision of the LoRA adapter, empty without one.
    cache_dtype: vLLM's ``--kv-cache-dtype``, settled (never ``auto``).
    codec: fingerprint of how rows are encoded, such as flashinfer_nvfp4's; empty where the dtype says all.
    layout: vLLM's KV cache layout, such as ``BLHNC``.
    caches: every cache of the block in the order of registration.
    mla_layers, indexer_layers, mtp_layers: how many caches of each kind the model's config.json asks for; mtp_layers
        are prediction layers that are served. `caches` must hold exactly these.
    block_size: tokens of a block. chunk_blocks: blocks in one object of the store.
    tp_size, pp_size, dcp_size, pcp_size: tensor, pipeline, decode-context and prefill-context parallel sizes.
    hash_algorithm, hash_seed: vLLM's ``--prefix-caching-hash-algo`` and the seed of the first block's parent.
    checksum: ``xxh3``, or ``none`` where the payload is memory that the CPU cannot read.
    """

    model: str
    revision: str
    weights: str
    adapter: str
    cache_dtype: str
    codec: str
    layout: str
    caches: tuple[CachePage, ...]
    mla_layers: int
    indexer_layers: int
    mtp_layers: int
    block_size: int
    chunk_blocks: int
    tp_size: int
    pp_size: int
    dcp_size: int
    pcp_size: int
    hash_algorithm: str
    hash_seed: str
    checksum: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "caches":
                self._check_caches()
            elif field.type == "str":
                _check_text(field.name, value, may_be_empty=field.name in ("adapter", "codec"))
            else:
                _check_count(field.name, value, least=0 if field.name in ("indexer_layers", "mtp_layers") else 1)
        _check_choice("hash_algorithm", self.hash_algorithm, HASH_ALGORITHMS, "others can be made to collide")
        _check_choice("checksum", self.checksum, CHECKSUMS, "readers and writers must agree on it")
        if self.cache_dtype == "auto":
            raise KeyRefused(
                "cache_dtype='auto'",
                "vLLM settles it when it starts, so it may stand for different bytes",
                "the settled dtype",
                "Pass the dtype that the caches were allocated with",
            )
        self._check_counts()

    def _check_caches(self) -> None:
        if not isinstance(self.caches, tuple) or not all(isinstance(page, CachePage) for page in self.caches):
            raise KeyRefused(
                f"caches={self.caches!r:.80}", "it lists the caches of a block", "CachePage entries", "Pass a list"
            )
        for page in self.caches:
            _check_text("caches.name", page.name)
            _check_choice("caches.kind", page.kind, KINDS, "the model has no other caches")
            if type(page.mtp) is not bool:
                raise KeyRefused(f"caches.mtp={page.mtp!r}", "it is a fact", "True or False", "Correct it")
            _check_count("caches.nbytes", page.nbytes)
            _check_count("caches.offset", page.offset, least=0)
        names = [page.name for page in self.caches]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise KeyRefused(f"caches={twice}", "they are listed twice", "each cache once", "Correct the list")

    def _check_counts(self) -> None:
        """A block without its indexer or prediction caches loads without an error and gives wrong tokens."""
        found = {
            "mla_layers": sum(page.kind == "mla" for page in self.caches),
            "indexer_layers": sum(page.kind == "indexer" for page in self.caches),
            "mtp_layers": sum(page.kind == "mla" and page.mtp for page in self.caches),
        }
        for name, count in found.items():
            if count != getattr(self, name):
                raise KeyRefused(
                    f"{name}={getattr(self, name)}, and caches holds {count}",
                    "a block that lacks a cache of the model loads without an error and gives wrong tokens",
                    "every MLA, indexer and prediction-layer cache of the model, once",
                    "Register the missing caches, or correct the number",
                )


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Which part of a block this is: the rank in each parallel size, 0 where all ranks hold the same bytes.

    group: vLLM's KV cache group.
    """

    tp: int = 0
    pp: int = 0
    dcp: int = 0
    pcp: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_count(f"rank.{field.name}", getattr(self, field.name), least=0)


def namespace(**given: Any) -> str:
    """The namespace of a deployment: ``mt1-`` and 32 hexadecimal digits, 128 bits of SHA-256 over all fields.

    given: the fields of `NamespaceFields`; ``caches`` may hold mappings. Raises `KeyRefused` for a missing, unknown
    or impossible field.
    """
    known = {field.name for field in fields(NamespaceFields)}
    _check_names("namespace", set(given), known)
    caches = given["caches"]
    if isinstance(caches, Sequence) and not isinstance(caches, str | bytes):
        given["caches"] = tuple(map(_page, caches))
    return _digest(NamespaceFields(**given))


def block_key(namespace: str, block_hash: bytes, rank: Rank | None = None) -> str:
    """The key of one block, or of one chunk, in Mooncake.

    block_hash: vLLM's chained hash of the block (of a chunk's last block), 16 to 64 bytes: it covers the tokens before
    it, the cache salt, the adapter's name and multimodal inputs. Raises `KeyRefused` for anything else.
    """
    prefix = key_prefix(namespace, rank)
    if type(block_hash) is not bytes or not 16 <= len(block_hash) <= 64:
        raise KeyRefused(
            f"block_hash={block_hash!r:.80}",
            "a shorter or other value does not tell blocks apart",
            "the 16 to 64 bytes of vLLM's block hash",
            "Pass the hash itself",
        )
    return prefix + block_hash.hex()


def key_prefix(namespace: str, rank: Rank | None = None) -> str:
    """What the keys of all blocks of one rank begin with; the block's hash in hexadecimal follows."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise KeyRefused(
            f"namespace={namespace!r}", "keys are safe only under one", "what namespace() returned", "Pass that"
        )
    one = rank or Rank()
    return f"{namespace}/g{one.group}t{one.tp}p{one.pp}d{one.dcp}c{one.pcp}/"


def namespace_pattern(namespace: str) -> str:
    """A regular expression that matches the keys of this namespace and no other."""
    if not _NAMESPACE.fullmatch(namespace):
        raise KeyRefused(
            f"namespace={namespace!r}", "it would match other keys", "what namespace() returned", "Pass it whole"
        )
    return f"^{namespace}/.*$"


def _digest(value: NamespaceFields) -> str:
    # JSON with quotes around every text: no two sets of fields have the same encoding.
    canonical = json.dumps({"version": VERSION, **asdict(value)}, sort_keys=True, separators=(",", ":"))
    return f"mt{VERSION}-{hashlib.sha256(canonical.encode('ascii')).hexdigest()[:32]}"


def _page(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    _check_names("caches", set(given), {field.name for field in fields(CachePage)})
    return CachePage(**given)


def _check_names(where: str, given: set[str], known: set[str]) -> None:
    if given == known:
        return
    missing, unknown = sorted(known - given), sorted(map(str, given - known))
    raise KeyRefused(
        f"{where} lacks {missing} and has the unknown {unknown}",
        "a field that is left out or misspelt would let different blocks share a key",
        f"exactly {sorted(known)}",
        "Pass every field",
    )


def _check_text(name: str, value: object, may_be_empty: bool = False) -> None:
    if not isinstance(value, str) or (not value.strip() and not (may_be_empty and value == "")):
        raise KeyRefused(
            f"{name}={value!r}",
            "it tells deployments apart",
            "text" if may_be_empty else "text that is not empty",
            "Pass the real value; a made-up constant would let different blocks share a key",
        )


def _check_count(name: str, value: object, least: int = 1) -> None:
    if type(value) is not int or not least <= value <= _MOST:
        raise KeyRefused(f"{name}={value!r}", "it is a number", f"a whole number of at least {least}", "Correct it")


def _check_choice(name: str, value: object, allowed: Sequence[str], why: str) -> None:
    if value not in allowed:
        raise KeyRefused(f"{name}={value!r}", why, " or ".join(allowed), "Choose one of them")
