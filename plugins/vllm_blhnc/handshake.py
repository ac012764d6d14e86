"""What a worker tells its peers beyond stock's handshake, and how it asks them before stock does.

Stock compares most of a deployment's configuration as one hash, which does not say what differs. Each worker
therefore adds the facts themselves, in a field that stock peers skip, and reads its peer's before stock's own
handshake begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import msgspec
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    GET_META_MSG,
    NIXL_CONNECTOR_VERSION,
    NixlHandshakePayload,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import zmq_ctx
from vllm.utils.network_utils import make_zmq_path

from stockpatch.versions import installed
from vllm_blhnc.stock import NIXL, VLLM

__all__ = ["RowPayload", "ask", "described", "facts"]


@dataclass
class RowPayload(NixlHandshakePayload):
    """Stock's payload with the facts of the deployment; a stock peer decodes it as its own."""

    blhnc: dict[str, Any] = field(default_factory=dict)


def facts(vllm_config: Any, transfer_mode: str, draft_ranks: int | None) -> dict[str, Any]:
    """What prefill and decode must have in common, under the names of `checks.FACTS`.

    transfer_mode: "pull" or "push". draft_ranks: tensor-parallel size if rows hold pages whose heads are split
    over ranks, else None, because MLA pages are the same on every rank.
    """
    model, speculative = vllm_config.model_config, vllm_config.speculative_config
    draft = speculative.draft_model_config if speculative else None
    return {
        "vllm_blhnc": metadata.version("glm53-blackwell"),
        "vllm": _version(VLLM.distributions),
        "nixl": _version(NIXL.distributions),
        "nixl_connector_version": NIXL_CONNECTOR_VERSION,
        "transfer_mode": transfer_mode,
        "model": model.model,
        "dtype": str(model.dtype),
        "cache_dtype": str(vllm_config.cache_config.cache_dtype),
        "model_layers": model.get_total_num_hidden_layers(),
        "speculative_method": speculative.method if speculative else None,
        "speculative_tokens": speculative.num_speculative_tokens if speculative else None,
        "draft_model": draft.model if draft else None,
        "draft_tensor_parallel_size": draft_ranks,
        "hybrid_kv_cache_manager": not vllm_config.scheduler_config.disable_hybrid_kv_cache_manager,
    }


def described(payload: NixlHandshakePayload) -> dict[str, Any]:
    """Stock's metadata and the facts of one worker in one mapping, decoded without stock's schema."""
    return msgspec.msgpack.decode(payload.agent_metadata_bytes) | getattr(payload, "blhnc", {})


def ask(host: str, port: int) -> RowPayload:
    """The payload of the peer's first worker; its facts are empty if it runs without the plugin.

    Raises TimeoutError if it does not answer within 5 seconds, as long as stock would wait, and ValueError if
    the answer is no handshake.
    """
    with zmq_ctx(zmq.REQ, make_zmq_path("tcp", host, port)) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 5000)  # milliseconds
        socket.send(msgspec.msgpack.encode((GET_META_MSG, 0, 0)))
        try:
            return msgspec.msgpack.decode(socket.recv_multipart()[0], type=RowPayload)
        except zmq.Again:
            raise TimeoutError(
                f"peer {host}:{port} did not answer the NIXL handshake within 5 s; nothing is read from it. "
                "Check that it runs and that VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT reach it."
            ) from None
        except msgspec.DecodeError as error:
            raise ValueError(
                f"peer {host}:{port} answered something else than a NIXL handshake ({error}); nothing is read "
                "from it. Check VLLM_NIXL_SIDE_CHANNEL_PORT, and run the same vLLM release on both sides."
            ) from error


def _version(distributions: tuple[str, ...]) -> str | None:
    found = installed(*distributions)
    return str(found[1]) if found else None
