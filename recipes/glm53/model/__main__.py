"""``python -m glm53.model make DIR``: the model maker alone."""

from glm53.model.cli import app

app(prog_name="python -m glm53.model")
