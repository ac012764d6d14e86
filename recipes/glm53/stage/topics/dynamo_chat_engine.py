"""Dynamo: a frontend with a chat engine of its user's."""

from __future__ import annotations

from glm53.stage.edits import Insert, Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CHAT_ENGINE"]

_MAIN = "frontend/main.py"
_ARGS = "frontend/frontend_args.py"


def _solved(tree: Tree) -> str | None:
    for file in (_MAIN, _ARGS):
        source = tree.source(file)
        for word in ('"--dyn-chat-engine', "dynamo.frontend.chat_engine"):
            if word in source.text:
                return f"{source.file}: has {word.strip(chr(34))}"
    return None


CHAT_ENGINE = Topic(
    id="chat-engine",
    project=PROJECTS["dynamo"],
    title="feat(frontend): take a chat engine of the user's",
    releases=">=1.6.1,<1.7",
    how="--dyn-chat-engine MODULE:FACTORY, or DYN_CHAT_ENGINE, names a function that the frontend hands to "
    "EntrypointArgs as chat_engine_factory, as it does with those of --dyn-chat-processor vllm and sglang. It is "
    "imported at the start, so that a name that is wrong ends it; beside another chat processor it is refused.",
    risks="The function's parameters are those that the bindings call it with; a change of them is then one of an "
    "interface. Nothing changes without the option.",
    near=_MAIN,
    solved=_solved,
    edits=(
        Insert(
            file=_ARGS,
            anchor="FrontendArgGroup.add_arguments",
            where="last",
            code="""\
            add_argument(
                g,
                flag_name="--dyn-chat-engine",
                env_var="DYN_CHAT_ENGINE",
                default=None,
                dest="chat_engine",
                help=(
                    "[EXPERIMENTAL] Chat engine of your own, as 'module:factory': an async "
                    "function that gets what the engines of --dyn-chat-processor get, and "
                    "returns a PythonAsyncEngine."
                ),
            )
            """,
            blank=1,
        ),
        Insert(
            file=_ARGS,
            anchor="FrontendConfig.validate",
            where="last",
            code="""\
            if self.chat_engine and self.chat_processor != "dynamo":
                raise ValueError(
                    f"--dyn-chat-engine={self.chat_engine} and --dyn-chat-processor="
                    f"{self.chat_processor} are mutually exclusive"
                )
            """,
        ),
        Insert(
            file=_ARGS,
            anchor="FrontendConfig",
            where="first",
            code="chat_engine: Optional[str] = None",
        ),
        Insert(
            file=_MAIN,
            anchor="async_main",
            where="before",
            code='''\
            def _own_chat_engine(config: FrontendConfig) -> dict[str, Any]:
                """What --dyn-chat-engine adds to the arguments of the entry point."""
                if not config.chat_engine:
                    return {}
                module, colon, name = config.chat_engine.partition(":")
                factory = getattr(importlib.import_module(module), name, None) if colon else None
                if not callable(factory):
                    raise ValueError(
                        f"--dyn-chat-engine={config.chat_engine} must name a function as "
                        "'module:factory'"
                    )
                return {"chat_engine_factory": factory}
            ''',
            blank=2,
        ),
        Value(file=_MAIN, scope="async_main", target="kwargs", code="{value} | _own_chat_engine(config)"),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/dynamo/test_chat_engine.py",
            "{package}/frontend/tests/test_chat_engine_option.py",
        ),
    ),
    evidence=(
        Evidence(
            "a chat engine of another package serves behind Dynamo's own frontend, HTTP service and router once it is "
            "in EntrypointArgs",
            "pytest tests/dynamo_structural_tags/test_frontend_clients_stock.py",
        ),
    ),
    why="EntrypointArgs takes a chat engine written in Python, but the frontend passes it only vLLM's and SGLang's: "
    "one that renders or parses otherwise cannot be served without changing the frontend.",
    records=("dynamo_structural_tags:frontend-chat-engine",),
)
