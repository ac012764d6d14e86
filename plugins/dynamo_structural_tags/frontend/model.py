"""What serving one model takes, read once from its model card: template, tokenizer, ends of outputs, reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamo_structural_tags.frontend.detokenize import TokenBytes
from dynamo_structural_tags.frontend.prompt import Template, template_source
from dynamo_structural_tags.glm_format import CALL, CALL_END, KEY, KEY_END, THINK_END, VALUE, VALUE_END

__all__ = ["ServedModel"]

_MARKERS = (THINK_END, CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END)
_THINK = "<think>"


@dataclass(frozen=True)
class ServedModel:
    """One model.

    tokenizer: a ``tokenizers.Tokenizer``. table: its tokens' bytes. eos: ids that end an output.
    runtime: the card's runtime configuration.
    """

    name: str
    template: Template
    tokenizer: Any
    table: TokenBytes
    eos: tuple[int, ...]
    runtime: Mapping[str, Any]

    @classmethod
    def load(cls, card: Mapping[str, Any], folder: Path) -> ServedModel:
        """Read the model. card: its deployment card as JSON; folder: where Dynamo put its files.

        Raises ValueError for a model whose output this plugin cannot read.
        """
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        name = str(card.get("display_name"))
        if missing := [marker for marker in _MARKERS if tokenizer.token_to_id(marker) is None]:
            raise ValueError(
                f"model {name!r}: its vocabulary lacks {', '.join(missing)}, so its calls are not in GLM's format, the "
                "only one that this frontend reads. Serve it with python -m dynamo.frontend."
            )
        runtime = card.get("runtime_config") or {}
        source, config = template_source(card, folder)
        return cls(
            name=name,
            template=Template(source, config, hide_tools=runtime.get("exclude_tools_when_tool_choice_none", True)),
            tokenizer=tokenizer,
            table=TokenBytes(tokenizer),
            eos=_eos(folder),
            runtime=runtime,
        )

    def prompt(self, request: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[str, list[int]]:
        """The prompt and its token ids."""
        text = self.template.render(request, arguments)
        return text, list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def think_end(self) -> int | None:
        """The id of ``</think>``."""
        return self.tokenizer.token_to_id(THINK_END)

    @staticmethod
    def thinks(prompt: str) -> bool:
        """Whether the output begins inside the reasoning."""
        return prompt.rstrip().endswith(_THINK)


def _eos(folder: Path) -> tuple[int, ...]:
    """Ids that end an output, from generation_config.json, else config.json."""
    found: list[int] = []
    for file in ("generation_config.json", "config.json"):
        path = folder / file
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
        found += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]
    return tuple(dict.fromkeys(found))
