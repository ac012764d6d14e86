"""Dynamo: a worker tells vLLM's engine the version of its weights."""

from __future__ import annotations

from glm53.stage.edits import Insert, Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["WEIGHT_VERSION"]

_FILE = "vllm/handlers.py"
_CLASS = "BaseWorkerHandler"
_METHODS = ("set_weight_version", "update_weights_from_disk", "update_weights_from_distributed")


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    for method in _METHODS:
        if calls := source.calls(f"{_CLASS}.{method}", "self.engine_client.update_weight_version"):
            return f"{source.file}: line {calls[0].lineno} in {method}"
    return None


WEIGHT_VERSION = Topic(
    id="weight-version",
    project=PROJECTS["dynamo"],
    title="feat(vllm): tell the engine the version of its weights",
    releases=">=1.6.1,<1.7",
    how="Where a worker notes the version that a trainer has declared, it calls the engine's update_weight_version() "
    "first. Releases of vLLM that do not have it are not called.",
    risks="Answers of vLLM's own API then name the version, as text, and not 'default'. If the engine does not take "
    "it, the worker's version stays what it was, and the call fails.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.get_weight_version",
            where="before",
            code='''\
            async def _told_to_engine(self, version: Any) -> Any:
                """The version of the weights, once vLLM's engine knows it, too."""
                update = getattr(self.engine_client, "update_weight_version", None)
                if update is not None:
                    await update(str(version))
                return version
            ''',
            blank=1,
        ),
        *(
            Value(
                file=_FILE,
                scope=f"{_CLASS}.{method}",
                target="self._weight_version",
                code="await self._told_to_engine({value})",
            )
            for method in _METHODS
        ),
    ),
    tests=(
        Place("recipes/glm53/stage/tests/dynamo/test_weight_version.py", "{package}/vllm/tests/test_weight_version.py"),
    ),
    evidence=(
        Evidence(
            "records of requests served through Dynamo name the version that a trainer declared only with a "
            "replacement of these three functions",
            "pytest tests/stack/test_stack_stock.py",
        ),
    ),
    records=tuple(f"rl_capture:dynamo-{method.replace('_', '-')}" for method in _METHODS),
    said=Said(
        "Dynamo's worker keeps the version of its weights to itself and does not tell vLLM's engine, which has a place "
        "for it and names it in what it returns: there it stays 'default', whatever a trainer has declared.",
        "https://github.com/ai-dynamo/dynamo/blob/main/components/src/dynamo/vllm/handlers.py",
        "Dynamo's worker declares the version to vLLM's engine.",
    ),
)
