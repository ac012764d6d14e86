"""Finds a plugin's register by the convention that it is ``<plugin>.patches:REGISTER``, for whoever lists patches."""

from __future__ import annotations

import importlib

from stockpatch.register import Register

__all__ = ["find_register"]


def find_register(plugin: str) -> Register:
    """The register of a plugin, by import name; loads no stock package.

    Raises LookupError, naming what was raised, if its file is missing, cannot be imported, or holds no register.
    """
    try:
        found = getattr(importlib.import_module(f"{plugin}.patches"), "REGISTER", None)
    except Exception as error:  # an incomplete or mixed installation may raise anything
        raise LookupError(f"{plugin}.patches cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, Register):
        raise LookupError(f"{plugin}.patches has REGISTER={found!r}, not a stockpatch.Register")
    return found
