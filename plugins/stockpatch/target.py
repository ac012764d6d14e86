"""Finds, checks and rewrites one attribute of a stock module or class, named as text."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["MARK", "ORIGINAL", "Target", "TargetError", "original_of"]

#: Set on every replacement that can carry attributes: which patch made it, and what it stands for.
MARK = "__stockpatch_id__"
ORIGINAL = "__stockpatch_original__"


def original_of(found: Any) -> Any:
    """The stock object that a replacement stands for; anything else itself."""
    return getattr(found, ORIGINAL, found)


class TargetError(LookupError):
    """A target is missing or is not what the patch expects; the text continues the target's name."""


@dataclass(frozen=True)
class Target:
    """``module:qualname``, with the object that defines the attribute once `found`."""

    module: str
    qualname: str
    owner: Any = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises ValueError unless ``text`` reads ``package.module:Qualified.name``."""
        module, _, qualname = text.partition(":")
        names = [*module.split("."), *qualname.split(".")]
        if not all(name.isidentifier() for name in names):
            raise ValueError(
                f"target={text!r} cannot be read; write 'package.module:Name' or 'package.module:Class.name'"
            )
        return cls(module, qualname)

    def __str__(self) -> str:
        if isinstance(self.owner, type) and self.owner.__qualname__ != self.qualname.rpartition(".")[0]:
            return f"{self.owner.__module__}:{self.owner.__qualname__}.{self.name}"
        return f"{self.module}:{self.qualname}"

    @property
    def name(self) -> str:
        return self.qualname.rpartition(".")[2]

    def found(self) -> Target:
        """Import the module and find the owner: for an inherited attribute, the class that defines it."""
        try:
            owner: Any = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise TargetError(f"is gone: there is no module {error.name!r}") from error
        for name in self.qualname.split(".")[:-1]:
            if not hasattr(owner, name):
                raise TargetError(f"is gone: {_label(owner)} has no {name!r}")
            owner = getattr(owner, name)
        for holder in inspect.getmro(owner) if isinstance(owner, type) else (owner,):
            if self.name in vars(holder):
                return Target(self.module, self.qualname, holder)
        raise TargetError(f"is gone: {_label(owner)} has no {self.name!r}")

    def read(self) -> Any:
        """The attribute as stored, so a staticmethod, classmethod or property and not what it yields."""
        return vars(self.owner)[self.name]

    def write(self, value: Any) -> None:
        setattr(self.owner, self.name, value)

    def same_place(self, other: Target) -> bool:
        return self.owner is other.owner and self.name == other.name

    def check_parameters(self, expected: tuple[str, ...] | None) -> None:
        """Raises `TargetError` if the target's parameter names differ from ``expected`` (None: no check)."""
        plain = _plain(self.read())
        if expected is None:
            return
        if not callable(plain):
            raise TargetError(f"is a {type(plain).__name__} and has no parameters, but {expected} are expected")
        seen = tuple(inspect.signature(plain).parameters)
        if seen != expected:
            raise TargetError(f"has the parameters {seen} and no longer {expected}")

    def wrapped(self, replace: Callable[[Any], Any], mark: str) -> Any:
        """What to store instead: the result of ``replace``, as the same kind of attribute, marked."""
        stored = self.read()
        original = _plain(stored)
        new = replace(original)
        if new is original:
            raise TargetError("is returned unchanged by the record's replace function")
        if callable(original) and not callable(new):
            raise TargetError(f"is callable, but the record's replace function returned {new!r}")
        if isinstance(original, property) and not isinstance(new, property):
            raise TargetError(f"is a property, but the record's replace function returned {new!r}")
        if callable(original):
            try:
                setattr(new, MARK, mark)
                setattr(new, ORIGINAL, original)
            except AttributeError as error:
                raise TargetError(f"gets {new!r}, which cannot be marked; return a function") from error
        return type(stored)(new) if isinstance(stored, staticmethod | classmethod) else new

    def carries(self, replacement: Any) -> bool:
        """Whether ``replacement`` is in place, directly or below later replacements made by registers."""
        if self.read() is replacement:
            return True
        below, wanted = _plain(self.read()), _plain(replacement)
        while callable(below):
            if below is wanted:
                return True
            below = vars(below).get(ORIGINAL) if hasattr(below, "__dict__") else None
        return False


def _plain(stored: Any) -> Any:
    return stored.__func__ if isinstance(stored, staticmethod | classmethod) else stored


def _label(owner: Any) -> str:
    return f"{owner.__module__}:{owner.__qualname__}" if isinstance(owner, type) else str(owner.__name__)
