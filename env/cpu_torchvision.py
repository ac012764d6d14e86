"""Let the torchvision of the package index import beside the CPU build of torch.

Its native library is linked against CUDA and does not load there, so the operators `torchvision::nms` and
`torchvision::qnms` have no schema, and the module of torchvision that registers their shape functions raises
`RuntimeError: operator torchvision::nms does not exist` while it is imported. `dynamo.vllm` imports
torchvision through transformers' Qwen2-VL image processor and so cannot start.

This hook waits for that module, and defines the two schemas just before it runs, unless the native library
has loaded. No kernel is added: calling them still fails, which is right. A `.pth` line imports this file at
the start of every Python in the environment, so it imports nothing but `sys` until torchvision is wanted.
Remove when the environment can install torchvision's own CPU wheel.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

WAITED_FOR = "torchvision._meta_registrations"
SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class TorchvisionSchemas:
    """A finder that finds nothing; it defines the schemas when `WAITED_FOR` is looked for."""

    library: Any = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == WAITED_FOR:
            sys.meta_path.remove(self)
            self.define_missing()
        return None

    def define_missing(self) -> None:
        """Let torchvision load its native library, and define the schemas that it has not defined."""
        import torch
        import torchvision.extension  # type: ignore[import-untyped]  # noqa: F401

        missing = [schema for name, schema in SCHEMAS.items() if not hasattr(torch.ops.torchvision, name)]
        if missing:
            # Definitions go with the library object, so the class keeps it: the finder itself is let go.
            library = type(self).library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in missing:
                library.define(schema)


sys.meta_path.insert(0, TorchvisionSchemas())
