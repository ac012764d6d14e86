"""Recipes that combine the plugins into a whole GLM-5.3 deployment, and the ``glm53`` command line."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("glm53-blackwell")
except PackageNotFoundError:  # a checkout on PYTHONPATH
    __version__ = "0+unknown"
