"""vLLM: structural tags that the engine compiles while it starts."""

from __future__ import annotations

import ast

from glm53.stage.edits import Call, Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["GRAMMAR_WARMUP"]

_FILE = "v1/structured_output/__init__.py"
_CONFIG = "config/structured_outputs.py"
_CLASS = "StructuredOutputManager"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    if calls := source.calls(f"{_CLASS}.__init__", "XgrammarBackend"):
        return f"{source.file}: line {calls[0].lineno} makes the backend at the start"
    config = tree.source(_CONFIG)
    for node in ast.walk(config.scope("StructuredOutputsConfig")):
        if isinstance(node, ast.AnnAssign) and "warm" in ast.unparse(node.target):
            return f"{config.file}: line {node.lineno} has {ast.unparse(node.target)}"
    return None


GRAMMAR_WARMUP = Topic(
    id="grammar-warmup",
    project=PROJECTS["vllm"],
    title="[Structured Output] Compile given structural tags while the engine starts",
    releases=">=0.31,<0.34",
    how="structured_outputs_config.warmup_structural_tags, empty by default, lists structural tags as JSON. Where "
    "there are some, the engine makes its xgrammar backend and compiles them before it serves, and a first request "
    "that is resolved to xgrammar gets that backend: xgrammar keeps what grammars share for those that come later. A "
    "tag that does not compile ends the start, as does another backend than xgrammar.",
    risks="Nothing changes without the setting. With it the engine starts later by as long as the tags take, and a "
    "backend is kept that an engine whose requests all resolve to another one does not use.",
    near=_FILE,
    solved=_solved,
    edits=(
        Import(file=_CONFIG, code="from pydantic import Field"),
        Insert(
            file=_CONFIG,
            anchor="StructuredOutputsConfig",
            where="first",
            code='''\
            warmup_structural_tags: list[str] = Field(default_factory=list)
            """Structural tags, as JSON, to compile while the engine starts."""
            ''',
        ),
        Import(file=_FILE, code="from vllm.v1.structured_output.backend_types import StructuredOutputOptions"),
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.__init__",
            where="last",
            code="""\
            # An xgrammar backend for the first request that needs one.
            self._warm_backend: XgrammarBackend | None = None
            config = self.vllm_config.structured_outputs_config
            if config.warmup_structural_tags:
                self._warm_backend = self._warmed(config)
            """,
            blank=1,
        ),
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.grammar_init",
            where="before",
            code='''\
            def _warmed(self, config) -> XgrammarBackend:
                """A backend that has compiled the tags of the configuration."""
                if config.backend not in ("auto", "xgrammar"):
                    raise ValueError(
                        "warmup_structural_tags are compiled by xgrammar, and "
                        f"structured_outputs_config.backend is {config.backend!r}"
                    )
                if self.vllm_config.model_config.skip_tokenizer_init:
                    raise ValueError(
                        "warmup_structural_tags need the tokenizer, and "
                        "skip_tokenizer_init is set"
                    )
                backend = XgrammarBackend(
                    self.vllm_config,
                    tokenizer=self.tokenizer,
                    vocab_size=self.vllm_config.model_config.get_vocab_size(),
                )
                for tag in config.warmup_structural_tags:
                    backend.compile_grammar(StructuredOutputOptions.STRUCTURAL_TAG, tag)
                return backend

            def _xgrammar_backend(self, vllm_config, **fields) -> XgrammarBackend:
                return self._warm_backend or XgrammarBackend(vllm_config, **fields)
            ''',
            blank=1,
        ),
        Call(
            file=_FILE,
            scope=f"{_CLASS}.grammar_init",
            call="XgrammarBackend",
            code="self._xgrammar_backend({arguments})",
        ),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_grammar_warmup.py", "tests/v1/structured_output/test_warmup_tags.py"
        ),
    ),
    evidence=(
        Evidence(
            "after one tag of GLM's format, other tools' tags add a fraction of what they add to a compiler that knows "
            "none",
            "pytest tests/dynamo_structural_tags/test_warm_compiler_stock.py",
        ),
    ),
    records=(
        "dynamo_structural_tags:compiler-made-at-the-start",
        "dynamo_structural_tags:prepared-compiler-handed-over",
    ),
    said=Said(
        "The engine makes its grammar compiler at the first request with a grammar. xgrammar then looks at each state "
        "of a text or string once for all tokens, and keeps it for all later grammars; for a tool-call format and a "
        "vocabulary like GLM's the first request waits half a second of processor time for it, and more on a busy "
        "machine.",
        "https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/v1/structured_output/__init__.py",
        "vLLM makes the compiler when the engine starts, and can be given grammars to compile then.",
    ),
)
