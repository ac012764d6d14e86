"""FlashInfer: the log-sum-exp of the NVFP4 decode, for any number of heads, by a kernel of its own."""

from __future__ import annotations

from glm53.stage.edits import Body, Edit, Import, Insert, Parameter, Value
from glm53.stage.place import Place
from glm53.stage.signatures import Docstring, Message, Returns
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["DECODE_LSE"]

_OP = "nvfp4_sparse_mla_decode"
_API = "mla/_core.py"
_HERE, _THERE = "plugins/flashinfer_nvfp4", f"experimental/{_OP}/mma"
_PACKAGE = f"flashinfer.{_THERE}".replace("/", ".")
_GENERATE = f"gen_{_OP}_mma_module"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_API)
    for name in source.parameters(_OP):
        if "lse" in name:
            return f"{source.file}: {_OP} takes {name}"
    return None


def _module(
    name: str, here: str = "", only: tuple[str, ...] = (), without: tuple[str, ...] = (), edits: tuple[Edit, ...] = ()
) -> Place:
    """A module by its name there, and by its name in the plugin where that is another."""
    module = f"{_PACKAGE}.{name}".removesuffix(".__init__")
    return Place(f"{_HERE}/{here or name}.py", f"{{package}}/{_THERE}/{name}.py", module, without, edits, only)


def _says(text: str, scope: str = "") -> Docstring:
    return Docstring(file="", scope=scope, text=text)


_SOURCES = ("launch.cu", "binding.cu", "decode.cuh")
_HEADERS = (
    *("arguments", "binding", "elements", "halves", "launch", "memory", "merge", "parts", "pipeline", "platform"),
    *("query", "rowformat", "rows", "score", "shared", "sync", "unpack", "values", "warp_ops"),
)

DECODE_LSE = Topic(
    id="decode-lse",
    project=PROJECTS["flashinfer"],
    title=f'{_OP}: backend="mma" returns the log-sum-exp',
    releases=">=0.7.4,<0.8",
    how='A third backend, "mma", beside "cuda" and "cake", which stay as they are. It is a kernel of its own for the '
    "same rows: thread blocks of 16 heads unpack them to float16 and multiply by mma.sync, in a pipeline of three "
    "stages, and a token's blocks merge through one another's shared memory, or through global memory where there are "
    "no clusters; how many there are is planned by whole waves. With return_lse=True the op returns beside the output "
    "the natural logarithm of the sum of exp(bmm1_scale * query . key), float32 [num_tokens, heads]; a token without "
    "keys has zeros and minus infinity. It takes 1 to 128 heads, an e4m3 or bfloat16 query, blocks of a cache at any "
    "distance, and indices outside of the cache as empty, on compute capability 9.0, 10.0, 10.3 and 12.0. Sources lie "
    "in a csrc folder of the operator's package, as those of the other experimental operators, and are built by "
    "gen_jit_spec.",
    risks="The kernel has not run on a GPU: no speed is known, and what only hardware does (barriers, clusters and "
    "asynchronous copies as instructions, conversion instructions) is not tested. The tests for a GPU come with it and "
    'skip without one. It uses mma.sync, not tcgen05, so on 10.x backend="cuda" may be faster where no log-sum-exp '
    "is asked for. The package data of a wheel must name the new csrc folder.",
    near=_API,
    solved=_solved,
    edits=(
        Parameter(file=_API, scope=_OP, code="return_lse: bool = False"),
        Returns(file=_API, scope=_OP, code="Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]"),
        Docstring(
            file=_API,
            scope=_OP,
            text="""\
            {text}

            ``backend="mma"`` runs on compute capability 9.0, 10.0, 10.3 and 12.0. It takes 1 to 128 heads, a query in
            ``torch.float8_e4m3fn`` or ``torch.bfloat16``, cache blocks at any distance, and indices outside of the
            cache as empty slots; ``num_ctas_per_token`` is 1 to 8, on 12.0 to 16. With ``return_lse=True``, which it
            alone supports, the op returns ``(out, lse)``: ``lse`` is ``torch.float32`` ``[num_tokens, num_heads]``,
            the natural logarithm of ``sum_k exp(bmm1_scale * query[t, h] . K[i_tk])``, and ``-inf`` for a token
            without keys. Parts of a context merge by it; :func:`flashinfer.merge_state` wants it divided by
            ``ln 2``. The kernel has not run on a GPU yet.
            """,
        ),
        Message(
            file=_API,
            scope=_OP,
            error="ValueError",
            code="f\"backend={backend!r} is unknown, choose 'cuda', 'cake' or 'mma'\"",
        ),
        Insert(
            file=_API,
            anchor=_OP,
            where="first",
            code=f"""\
            if backend == "mma":
                from ..experimental.{_OP}.mma.decode import decode

                rows = kv_cache if kv_cache.dim() == 3 else kv_cache.view(-1, 352)
                found, lse = decode(
                    query,
                    rows,
                    indices,
                    bmm1_scale,
                    lse=True,
                    num_ctas=num_ctas_per_token,
                    out=out,
                    out_scale=bmm2_scale,
                )
                return (found, lse) if return_lse else found
            if return_lse:
                raise NotImplementedError(
                    f"backend={{backend!r}} has no log-sum-exp, backend='mma' returns one"
                )
            """,
        ),
    ),
    places=(
        _module(
            "__init__",
            edits=(_says("NVFP4 sparse MLA decode by ``mma.sync``, with the log-sum-exp and any number of heads."),),
        ),
        _module(
            "errors",
            only=("Refused", "LaunchRefused", "BuildRefused"),
            edits=(_says("Refusals, always with the same four parts."),),
        ),
        _module(
            "rowformat",
            only=("LATENT", "ROPE", "BLOCK", "BLOCKS", "CODE_BYTES", "ROPE_OFFSET", "SCALE_OFFSET", "ROW_BYTES"),
        ),
        _module("tensors", edits=(_says("What is checked of tensors on the host: dtype, shape, how a cache lies."),)),
        _module(
            "plan",
            only=(
                *("STAGE_KEYS", "STAGES", "OVERHEAD_STAGES", "MERGE_STAGES", "MAX_SPLITS", "SPLIT_STAGES"),
                *("CLUSTER_SIZES", "legal_cluster_sizes", "launch_cost", "plan_clusters", "plan_splits"),
            ),
            edits=(
                _says("Launch shapes: numbers in, numbers out."),
                _says(
                    """\
                    Cost, in stages, of ``num_tokens`` clusters of ``size`` CTAs of which the device runs ``at_once``.

                    Each wave is as long as the stages of one CTA, and an overhead for filling its pipeline and
                    merging, which was measured on a B300 with a top-k of 2048.
                    """,
                    "launch_cost",
                ),
            ),
        ),
        _module(
            "arch",
            "cuda_arch",
            edits=(
                Value(file="", scope="", target="KERNELS", code='("launch.cu",)'),
                Value(file="", scope="", target="SOURCES", code='(*KERNELS, "binding.cu")'),
            ),
        ),
        _module("arguments", "cuda_arguments"),
        _module(
            "jit",
            "cuda_build",
            only=("load", "jit_spec", "_digest"),
            edits=(
                _says("JIT spec of the kernel for one architecture."),
                Import(file="", code="from flashinfer.jit.core import JitSpec, gen_jit_spec"),
                _says("The module with the functions ``decode`` and ``capacity``, built at the first use.", "load"),
                Body(file="", scope="load", code=f"return {_GENERATE}(arch).build_and_load()"),
                Returns(file="", scope="jit_spec", code="JitSpec"),
                _says("Its name holds a digest of the sources, so old builds are not taken.", "jit_spec"),
                Body(
                    file="",
                    scope="jit_spec",
                    code=f"""\
                    return gen_jit_spec(
                        name=f"{_OP}_mma_{{arch.name}}_{{_digest()}}",
                        sources=[CSRC / name for name in SOURCES],
                        extra_cuda_cflags=arch.flags,
                        extra_include_paths=[CSRC],
                        use_fast_math=False,  # it would flush the subnormals that small scales are
                    )
                    """,
                ),
            ),
        ),
        _module("decode", "cuda_decode"),
        *(
            Place(f"{_HERE}/csrc/{name}", f"{{package}}/{_THERE}/csrc/{name}")
            for name in (*_SOURCES, *(f"{header}.h" for header in _HEADERS))
        ),
    ),
    tests=tuple(
        Place(f"recipes/glm53/stage/tests/flashinfer/test_decode_{name}.py", f"tests/experimental/test_{_OP}_{name}.py")
        for name in ("lse", "lse_build")
    ),
    evidence=(
        Evidence(
            "the kernel's own headers, run on the host lane by lane, are within 0.5 % of attention in float64, 1 to "
            "128 heads, and the parts of two ranks merge by their log-sum-exp to the whole; nothing has run on a GPU",
            "pytest tests/flashinfer_nvfp4/test_host_decode_stock.py",
        ),
        Evidence(
            "under ThreadSanitizer warps and blocks wait for one another where they must",
            "pytest tests/flashinfer_nvfp4/test_host_races.py",
        ),
        Evidence(
            "nvcc 13.0 compiles it for sm_90a, sm_100a, sm_103a and sm_120a without a spill, with 121, 122, 122 and "
            "101 registers a thread",
            "pytest tests/flashinfer_nvfp4/test_cuda_build.py",
        ),
    ),
    said=Said(
        "Under decode context parallelism each rank attends to its part of the selected keys, and the parts are merged "
        "by their log-sum-exp. The op returns none, so a cache in NVFP4 rows cannot be decoded that way. It also takes "
        "16 heads alone, while ranks gather the heads of all, and runs on compute capability 10.0 and 10.3 only.",
        "https://github.com/flashinfer-ai/flashinfer/issues/5716",
        "nvfp4_sparse_mla_decode returns the log-sum-exp.",
    ),
    renamed={
        "return jit_spec(": f"return {_GENERATE}(",
        "def jit_spec(": f"def {_GENERATE}(",
        "flashinfer_nvfp4/rowformat.py": "rowformat.py",
        "cuda_decode.py": "decode.py",
        "cuda_build.py": "arch.py",
        "; on a CPU, flashinfer_nvfp4.codec reads and writes rows": "",
        "Use the Triton kernels": "Use another backend",
        "a CTA in the stock op: its ring of slots, and its table of 1024 indices": 'a CTA of backend="cuda"',
        "Programs among which the Triton decode kernel divides": "Thread blocks among which launches without clusters "
        "divide",
        "the default is the stock op's": 'the default is that of backend="cuda"',
        "(the stock op: 3 to 8)": '(backend="cuda": 3 to 8)',
        "worse than FlashInfer's": "worse than the largest size that fits into one wave",
    },
)
