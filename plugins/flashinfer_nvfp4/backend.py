"""The classes that vLLM finds under the names of its own sparse MLA backends.

``flashinfer_nvfp4.backend.<name>`` is, for each of `flashinfer_nvfp4.stock.NAMES`, a subclass of stock's class that
answers as stock for every cache dtype but ``nvfp4_ds_mla``, and gives out stock's own implementation and metadata
builder for them. It is stock's class itself where vLLM reads the rows natively.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any, ClassVar

from flashinfer_nvfp4.device import capability
from flashinfer_nvfp4.dispatch import Shape, choose
from flashinfer_nvfp4.refusals import Deployment, refusal
from flashinfer_nvfp4.settings import BACKEND, CACHE_DTYPE, backend_choice
from flashinfer_nvfp4.stock import NAMES, native_reader, stock_backend, untested

_log = logging.getLogger("vllm.flashinfer_nvfp4")


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _built(name)


@functools.cache
def _built(name: str) -> Any:
    stock = stock_backend(name)
    place = {"__module__": __name__, "__qualname__": name, "stock": stock}
    if error := untested():
        return type(name, (_Refusing, stock), place | {"why": str(error)})
    if native := native_reader(name):
        _log.info("flashinfer_nvfp4 steps aside for %s: %s", name, native)
        return stock
    dtypes = [*stock.supported_kv_cache_dtypes]
    if CACHE_DTYPE not in dtypes:
        dtypes.append(CACHE_DTYPE)
    return type(name, (_Reading, stock), place | {"majors": NAMES[name], "supported_kv_cache_dtypes": dtypes})


class _Refusing:
    """On a vLLM that nobody has tested: no start with these rows, and stock in everything else."""

    why: ClassVar[str]

    @classmethod
    def validate_configuration(cls, *args: Any, **kwargs: Any) -> list[str]:
        reasons = super().validate_configuration(*args, **kwargs)  # type: ignore[misc]
        if CACHE_DTYPE in (*args, *kwargs.values()):
            reasons.append(f"flashinfer_nvfp4: {cls.why} For the rows as vLLM itself serves them, set {BACKEND}=off.")
        return reasons


class _Reading:
    """Reads the rows on the compute capabilities in ``majors``."""

    stock: ClassVar[Any]
    majors: ClassVar[tuple[int, ...]]

    @classmethod
    def reads(cls, cache_dtype: Any, major: int | None = None) -> bool:
        """Whether caches of this dtype are this plugin's; ``major``: compute capability, else that of the device."""
        return cache_dtype == CACHE_DTYPE and (capability()[0] if major is None else major) in cls.majors

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: Any,
        kv_cache_dtype: Any,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        """Why not, or None. On 10.x FLASHMLA_SPARSE answers as stock, but for what would read wrong bytes there."""
        ours = cls.reads(kv_cache_dtype, device_capability.major)
        if not ours:
            asked = (use_mla, has_sink, use_sparse, use_mm_prefix, device_capability)
            stock = super().supports_combination(  # type: ignore[misc]
                head_size, dtype, kv_cache_dtype, block_size, *asked
            )
            if stock or kv_cache_dtype != CACHE_DTYPE:
                return stock
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        if config.model_config is None:
            return None
        facts = Deployment.of(config, dtype, has_sink)
        if not ours:
            return refusal(facts) if facts.hisparse else None
        return refusal(facts) or _no_kernel(config, facts, device_capability)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Blocks a whole number of rows apart, which flat row ids need."""
        if not cls.reads(getattr(spec, "cache_dtype_str", None)):
            return super().customize_spec(spec)  # type: ignore[misc]
        return replace(spec, block_stride_alignment=spec.state_content_size_bytes)

    @classmethod
    def get_impl_cls(cls: Any) -> Any:
        return _impl(cls)

    @classmethod
    def get_builder_cls(cls: Any) -> Any:
        return _builder(cls)


def _no_kernel(config: Any, facts: Deployment, device: Any) -> str | None:
    """Why no kernel decodes, as far as one can tell without building any."""
    from flashinfer_nvfp4.installed import facts as installed

    parallel = config.parallel_config
    dcp = parallel.decode_context_parallel_size
    assert facts.topk is not None
    shape = Shape(
        capability=(device.major, device.minor),
        heads=config.model_config.get_num_attention_heads(parallel) * dcp,
        topk=facts.topk,
        lse=dcp > 1,
        tokens=config.scheduler_config.max_num_batched_tokens,
        graphs=not config.model_config.enforce_eager,
    )
    choice = choose(shape, installed(shape.capability), backend_choice())
    return None if choice.kernel else f"no kernel decodes NVFP4 rows here: {choice.reason}"


@functools.cache
def _impl(backend: Any) -> Any:
    """A class that, when it is called, gives this plugin's implementation or stock's, by the cache dtype."""
    stock = backend.stock.get_impl_cls()

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        cache_dtype = kwargs["kv_cache_dtype"] if "kv_cache_dtype" in kwargs else args[6]
        if not backend.reads(cache_dtype):
            if cache_dtype == CACHE_DTYPE:  # stock reads the rows, but not a cached context of dense prefill
                from flashinfer_nvfp4 import context_gather

                context_gather.activate()
            return stock(*args, **kwargs)
        from flashinfer_nvfp4.attention import SparseRowsImpl

        return SparseRowsImpl(*args, **kwargs)

    # The name is stock's, because vLLM prints it; class attributes, which know no dtype, are stock's too.
    return type(stock.__name__, (stock,), {"__new__": new, "__module__": __name__})


@functools.cache
def _builder(backend: Any) -> Any:
    """The same for metadata builders, by the cache dtype of their layers."""
    stock = backend.stock.get_builder_cls()

    def chosen(spec: Any) -> Any:
        if not backend.reads(getattr(spec, "cache_dtype_str", None)):
            return stock
        from flashinfer_nvfp4.builder import RowsMetadataBuilder

        return RowsMetadataBuilder

    def new(cls: type, kv_cache_spec: Any, *args: Any, **kwargs: Any) -> Any:
        return chosen(kv_cache_spec)(kv_cache_spec, *args, **kwargs)

    def graphs(cls: type, vllm_config: Any, kv_cache_spec: Any) -> Any:
        return chosen(kv_cache_spec).get_cudagraph_support(vllm_config, kv_cache_spec)

    def lengths(cls: type, vllm_config: Any, kv_cache_spec: Any) -> Any:
        return chosen(kv_cache_spec).get_varlen_cudagraph_max_query_len(vllm_config, kv_cache_spec)

    methods = {
        "__new__": new,
        "__module__": __name__,
        "get_cudagraph_support": classmethod(graphs),
        "get_varlen_cudagraph_max_query_len": classmethod(lengths),
    }
    return type(stock.__name__, (stock,), methods)
