"""Makes a small model with GLM-5.3's cache geometry, tokenizer and chat format, and random weights.

Its answers mean nothing. Its data path is the real one: per layer and token it caches the same bytes as
GLM-5.3, it is loaded by the same classes, and its prompts are built and its tool calls parsed the same way.
"""

from glm53.model.folder import Made, Manifest, ModelError, make, verify
from glm53.model.shape import Shape

__all__ = ["Made", "Manifest", "ModelError", "Shape", "make", "verify"]
