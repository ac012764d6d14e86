"""Guards: what the worker registered with NIXL, and what the peer says it registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_blhnc.plan import BlockRow

__all__ = [
    "FACTS",
    "MUST_MATCH",
    "HandshakeMismatch",
    "LayoutError",
    "Registered",
    "check_registration",
    "comparable",
    "peer_differences",
    "wrong_layout",
]


class LayoutError(RuntimeError):
    """This worker's KV cache is not the block rows that the deployment asks for. Nothing was served."""


class HandshakeMismatch(RuntimeError):
    """Prefill and decode describe their KV caches differently; no byte was read from the peer."""


@dataclass(frozen=True)
class Registered:
    """What a worker registered: per-region lengths and strides in bytes, and where each page lies.

    members: layer name -> (byte offset in the row, bytes of its page), for layers inside whole rows.
    layer_strides: layer name -> bytes between a layer's blocks in memory, as attention addresses them.
    """

    layout: str
    lengths: Sequence[int]
    strides: Sequence[int]
    members: Mapping[str, tuple[int, int]]
    layer_strides: Mapping[str, int]


def check_registration(seen: Registered, row: BlockRow, pages: Mapping[str, int]) -> None:
    """Raise `LayoutError` unless the worker registered one dense region of rows as planned.

    row, pages (layer name -> bytes of one page): from the layers' cache specifications, independent of what
    was registered.
    """
    if seen.layout != "BLHNC":
        raise LayoutError(wrong_layout(seen.layout))
    if list(seen.lengths) != [row.nbytes] or list(seen.strides) != [row.nbytes]:
        raise LayoutError(
            f"NIXL regions have lengths {_some(seen.lengths)} and strides {_some(seen.strides)} bytes, but "
            f"whole rows need one region with both equal to {row.nbytes} ({row.payload} of KV, aligned to "
            f"{row.alignment}): more regions, or gaps between rows, cost one descriptor per page. Set "
            'kv_connector_extra_config.blhnc.layout="stock" and report this with the model\'s config.json.'
        )
    if missing := sorted(set(pages) - set(seen.members)):
        raise LayoutError(
            f"layers {_some(missing)} are not inside the registered rows; all {len(pages)} caches must travel "
            'together or decode reads stale pages. Set kv_connector_extra_config.blhnc.layout="stock" and '
            "report this with the model's config.json."
        )
    end = 0
    for name, (offset, nbytes) in sorted(seen.members.items(), key=lambda item: item[1]):
        if nbytes != pages[name] or offset < end or offset + nbytes > row.payload:
            raise LayoutError(
                f"page of {name} lies at bytes {offset}..{offset + nbytes} of the row, but it must be "
                f"{pages[name]} bytes, start at or after {end} and end by {row.payload}: pages would overlap, "
                "be cut off or stay behind. Leave --speculative-config out if it is a draft model's, or set "
                'kv_connector_extra_config.blhnc.layout="stock", and report this with the model\'s config.json.'
            )
        end = offset + nbytes
    if bad := {name: stride for name, stride in seen.layer_strides.items() if stride != row.nbytes}:
        raise LayoutError(
            f"caches {_some(sorted(bad))} advance by {_some(sorted(set(bad.values())))} bytes per block in "
            f"memory, the registered row by {row.nbytes}: NIXL would move other bytes than attention wrote. "
            'Set kv_connector_extra_config.blhnc.layout="stock" and report this with the model\'s config.json.'
        )


def wrong_layout(seen: str) -> str:
    """The message for a resolved layout other than BLHNC."""
    return (
        f"kv_cache_layout={seen}, but block rows need BLHNC. vLLM only warns when it cannot follow a "
        "connector's wish: unset VLLM_KV_CACHE_LAYOUT (or set it to BLHNC), and check that every attention "
        'backend of the model accepts it, or set kv_connector_extra_config.blhnc.layout="stock".'
    )


#: Field of stock's handshake metadata -> what a user must make equal on prefill and decode.
MUST_MATCH = {
    "kv_cache_layout": "VLLM_KV_CACHE_LAYOUT and kv_connector_extra_config.blhnc.layout",
    "block_size": "--block-size",
    "attn_backend_name": "--attention-backend",
    "physical_blocks_per_logical_kv_block": "--block-size and --attention-backend",
    "block_lens": "--kv-cache-dtype, --block-size, the model, its draft model and the plugin on both sides",
    "block_strides": "--kv-cache-dtype, --block-size, kv_connector_extra_config.blhnc.row_alignment_tokens, "
    "--attention-backend and the plugin on both sides",
    "packed_member_layouts": "the model, its draft (MTP) layers and the vLLM release",
    "dcp_size": "--decode-context-parallel-size",
    "pcp_size": "--prefill-context-parallel-size",
}

#: Field that workers of this plugin add -> the same. Its first entry is missing where the plugin is.
FACTS = {
    "vllm_blhnc": 'the glm53-blackwell release and "kv_connector_module_path": "vllm_blhnc.connector"',
    "vllm": "the vLLM release",
    "nixl": "the NIXL release",
    "nixl_connector_version": "the vLLM release, which brings its NIXL connector,",
    "transfer_mode": "kv_connector (NixlConnector and NixlPullConnector pull, NixlPushConnector pushes)",
    "model": "--model, as text,",
    "dtype": "--dtype",
    "cache_dtype": "--kv-cache-dtype",
    "model_layers": "the model's config.json and --hf-overrides",
    "speculative_method": "--speculative-config",
    "speculative_tokens": "num_speculative_tokens in --speculative-config",
    "draft_model": "the model in --speculative-config",
    "draft_tensor_parallel_size": "--tensor-parallel-size, over whose ranks the draft's heads are split,",
    "hybrid_kv_cache_manager": "--disable-hybrid-kv-cache-manager",
}


#: What differs as soon as the layout does, and would only hide that.
_FOLLOWS_FROM_LAYOUT = ("block_lens", "block_strides", "packed_member_layouts")


def comparable(peer: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields in which a peer can be told different: of a peer without the plugin, which has no facts, only
    the first fact."""
    facts = tuple(FACTS)
    return (*(facts if facts[0] in peer else facts[:1]), *MUST_MATCH)


def peer_differences(
    mine: Mapping[str, Any], peer: Mapping[str, Any], fields: Iterable[str] = tuple(MUST_MATCH)
) -> list[str]:
    """One sentence per field in which the peer's deployment differs from this worker's.

    Both are the handshake metadata as plain mappings, with facts or without; a field one side lacks counts as
    different.
    """
    found = []
    layouts = mine.get("kv_cache_layout"), peer.get("kv_cache_layout")
    other_layout = "kv_cache_layout" in fields and None not in layouts and layouts[0] != layouts[1]
    for field in fields:
        if other_layout and field in _FOLLOWS_FROM_LAYOUT:
            continue
        here, there = _plain(mine.get(field)), _plain(peer.get(field))
        if here == there:
            continue
        seen = (_brief(here, there), _brief(there, here))
        found.append(
            (
                f"{field} is {seen[0]} here and {seen[1]} at the peer"
                if seen[0] != seen[1]
                else f"{field} is {seen[0]} here and at the peer, but not in detail"
            )
            + f": make {MUST_MATCH.get(field) or FACTS[field]} equal"
        )
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _brief(value: Any, other: Any) -> str:
    if isinstance(value, dict):
        known = other if isinstance(other, dict) else {}
        differing = sorted((item for item in value.items() if known.get(item[0]) != item[1]), key=repr)
        return f"{len(value)} pages (differing: {_some(differing) if differing else 'none'})"
    if isinstance(value, list):
        return f"{len(value)} regions of {_some(sorted(set(value)) if _numbers(value) else value)} bytes"
    return repr(value)


def _numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _some(values: Sequence[Any], limit: int = 4) -> str:
    shown = ", ".join(str(value) for value in values[:limit])
    return f"[{shown}, ... {len(values)} in all]" if len(values) > limit else f"[{shown}]"
