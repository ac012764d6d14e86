"""vLLM: latents of NVFP4 rows, brought to the size that their scales hold best."""

from __future__ import annotations

import ast

from glm53.stage.edits import Body, Cut, Entry, Insert, Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.topics.vllm_context_gather import ROW_WORDS, ROWS, row_module
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["LATENT_FOLD"]

_LOADER = "model_executor/model_loader/utils.py"
_RELOAD = "model_executor/model_loader/reload/layerwise.py"
_MLA = "model_executor/layers/attention/mla_attention.py"
_PACKAGE = "vllm.v1.attention.ops.nvfp4_mla"
SETTING = "VLLM_NVFP4_MLA_FOLD"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_LOADER)
    for node in ast.walk(source.scope("process_weights_after_loading")):
        if isinstance(node, ast.Call) and "fold" in ast.unparse(node.func):
            return f"{source.file}: line {node.lineno} calls {ast.unparse(node.func)}"
    return None


def _refuses_copies(file: str, function: str, releases: str) -> Insert:
    return Insert(
        file=file,
        anchor=function,
        where="first",
        releases=releases,
        code=f"""\
        from {_PACKAGE}.reloading import refuse_processed

        refuse_processed(model)
        """,
        blank=1,
    )


LATENT_FOLD = Topic(
    id="latent-fold",
    project=PROJECTS["vllm"],
    title="[Attention] Fold a power of two into the latents of nvfp4_ds_mla rows",
    releases=">=0.31,<0.34",
    how=f"With {SETTING}=1, off by default, kv_a_layernorm of a layer with such rows is multiplied by a power of two "
    "that brings its root mean square to about one, and kv_b_proj is divided by it, after loading and before weights "
    "are processed. A power of two changes exponents only, so every logit stays bit for bit what it was, except that "
    "the cache holds small latents with more precision. Weights that are loaded again are folded again; transfers that "
    "write past the loader are refused.",
    risks="Rows of a folded model mean something else than rows of an unfolded one: prefill and decode workers, and "
    "what stores blocks, need the same setting. Values that a fold would push out of their dtype's range, and queries "
    "that e4m3 could not hold, are refused or limited before any weight is changed. Nothing of this topic has run on a "
    "GPU.",
    near=_LOADER,
    solved=_solved,
    edits=(
        Insert(
            file=_LOADER,
            anchor="process_weights_after_loading",
            where="first",
            code=f"""\
            from {_PACKAGE}.folding import fold_loaded

            fold_loaded(model)
            """,
            blank=1,
        ),
        Insert(
            file=_RELOAD,
            anchor="_layerwise_process",
            where="first",
            code=f"""\
            from {_PACKAGE}.reloading import fold_incoming, settle

            fold_incoming(layer, info.loaded_weights)
            """,
            blank=1,
        ),
        Insert(file=_RELOAD, anchor="_layerwise_process", where="last", code="settle(layer)"),
        _refuses_copies("v1/worker/gpu_model_runner.py", "_get_parameter_for_reload", "<0.32"),
        _refuses_copies("model_executor/model_loader/reload/inplace.py", "get_parameter_for_reload", ">=0.32"),
        Insert(
            file=_MLA,
            anchor="MLAAttention.process_weights_after_loading",
            where="first",
            code=f"""\
            from {_PACKAGE}.reloading import require_followed

            require_followed(self.kv_b_proj)
            """,
            blank=1,
        ),
        Entry(
            file="envs.py",
            target="environment_variables",
            key=SETTING,
            code=f"""lambda: bool(int(os.getenv("{SETTING}", "0")))""",
        ),
    ),
    places=(
        *ROWS,
        row_module("fold", ("process_folds", "_MODELS"), (Cut(file="", scope="fold_model", call="_MODELS.add"),)),
        *map(row_module, ("exponents", "fold_tensors", "query", "reloading")),
        Place(
            "plugins/flashinfer_nvfp4/settings.py",
            "{package}/v1/attention/ops/nvfp4_mla/fold_setting.py",
            f"{_PACKAGE}.fold_setting",
            only=("FOLD", "fold_wanted"),
            edits=(
                Value(file="", scope="", target="FOLD", code=f'"{SETTING}"'),
                Body(file="", scope="fold_wanted", code=f"from vllm import envs\n\nreturn bool(envs.{SETTING})"),
            ),
        ),
        Place(
            "plugins/flashinfer_nvfp4/stock.py",
            "{package}/v1/attention/ops/nvfp4_mla/workers.py",
            f"{_PACKAGE}.workers",
            only=("weight_transfer", "least_of_ranks"),
        ),
        row_module(
            "folding",
            without=("activate",),
            edits=(
                Body(
                    file="",
                    scope="row_layers",
                    code="""\
                    layers = [layer for layer in model.modules() if hasattr(layer, "kv_b_proj")]
                    return [layer for layer in layers if getattr(layer, "kv_cache_dtype", None) == "nvfp4_ds_mla"]
                    """,
                ),
                Body(
                    file="",
                    scope="_takes_fp8_queries",
                    code="""\
                    decode = getattr(layer.impl, "supports_quant_query_input", False)
                    return bool(getattr(layer.impl, "takes_fp8_queries", decode))
                    """,
                ),
                Body(
                    file="",
                    scope="_tell_ways_out",
                    code='error.add_note(f"To serve the model without the fold, set {FOLD}=0 for all workers.")',
                ),
            ),
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_latent_fold.py", "tests/kernels/attention/test_latent_fold.py"),),
    evidence=(
        Evidence(
            "a folded model answers as the unfolded one in a real engine, also after its weights are loaded again",
            "pytest tests/flashinfer_nvfp4/test_fold_engine_stock.py",
        ),
        Evidence(
            "latents of a root mean square of 0.03, 0.01 and 0.002, folded and searched for, leave at most 0.74, 0.45 "
            "and 0.30 of the squared error of today's rows",
            "pytest tests/flashinfer_nvfp4/test_fold_error_stock.py",
        ),
    ),
    records=(
        "flashinfer_nvfp4:fold-before-processing",
        "flashinfer_nvfp4:fold-of-reloads",
        "flashinfer_nvfp4:no-kernel-format-under-folds-until-0.31",
        "flashinfer_nvfp4:no-kernel-format-under-folds",
    ),
    said=Said(
        "An nvfp4_ds_mla row has no outer scale. GLM's first layers have small latents, whose block scales are then "
        "subnormal e4m3 values with few bits, and the layer loses accuracy that the format could hold.",
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/model_loader/base_loader.py",
        "nvfp4_ds_mla rows have an outer scale, or vLLM folds latents by itself.",
    ),
    renamed={
        "What an operator can set about the vLLM backend, read strictly. Standard library only; the rows' policy is "
        "in\n`flashinfer_nvfp4.policy`.": "Whether latents are folded.",
        "Environment variable: ``on`` (also where it is unset) or ``off``; prefill": "Environment variable; prefill",
        "; raises `SettingRefused` for anything but on, off and unset": "",
        "What differs between the supported vLLM releases, and what of stock this plugin stands on, in one place.": ""
        "What folding asks the engine and the other workers.",
        "if it keeps NVFP4 rows and the setting does not say off": "if it keeps NVFP4 rows and folding is on",
        "with {FOLD}=off": "with {FOLD}=0",
        "(%s=off leaves": "(%s=0 leaves",
        'getLogger("vllm.flashinfer_nvfp4")': 'getLogger("vllm.nvfp4_mla")',
        '"flashinfer_nvfp4: ': '"',
        '"_flashinfer_nvfp4_folds"': '"_latent_folds"',
        "flashinfer_nvfp4.stock": f"{_PACKAGE}.workers",
        **ROW_WORDS,
    },
)
