"""The ways of caching that are compared, and where each of them runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from flashinfer_nvfp4.policy import SETTING as POLICY
from flashinfer_nvfp4.policy import Policy
from flashinfer_nvfp4.settings import CACHE_DTYPE, FOLD

__all__ = ["REFERENCE", "SETTINGS", "CacheRefused", "Setting", "check_device", "check_rows", "environment", "named"]


class CacheRefused(RuntimeError):
    """A cache that cannot be had here, or that is not the one asked for."""


@dataclass(frozen=True)
class Setting:
    """cache_dtype: vLLM's ``--kv-cache-dtype``. policy: who chooses the scales of NVFP4 rows. fold: of the latent."""

    name: str
    cache_dtype: str
    policy: Policy | None = None
    fold: bool = False


REFERENCE = Setting("bf16", "auto")
"""A bfloat16 cache, which is what ``auto`` means for a bfloat16 model."""

SETTINGS = (
    Setting("fp8", "fp8"),
    Setting("fp8_ds_mla", "fp8_ds_mla"),
    Setting("rtn", CACHE_DTYPE, "rtn"),
    Setting("four_over_six", CACHE_DTYPE, "four_over_six"),
    Setting("search", CACHE_DTYPE, "search"),
    Setting("fold + rtn", CACHE_DTYPE, "rtn", fold=True),
    Setting("fold + search", CACHE_DTYPE, "search", fold=True),
)


def named(name: str) -> Setting:
    """The setting of this name, as typed with or without spaces; raises ValueError for another."""
    for setting in SETTINGS:
        if setting.name.replace(" ", "") == name.replace(" ", ""):
            return setting
    known = ", ".join(setting.name.replace(" ", "") for setting in SETTINGS)
    raise ValueError(f"{name!r} is no way of caching that is compared; allowed: {known}. Choose of these.")


def check_device(setting: Setting, device: str) -> None:
    """Raise `CacheRefused` for a cache that no engine on ``device``, ``cpu`` or ``cuda``, can have."""
    if device == "cpu":
        from vllm_cpu_dsa.errors import Unsupported
        from vllm_cpu_dsa.rows import row_format

        try:
            row_format(setting.cache_dtype)
        except Unsupported as error:
            raise CacheRefused(f"{error} Or run it on a GPU.") from error


def check_rows(setting: Setting, fingerprint: str | None) -> None:
    """Raise `CacheRefused` if workers say by their rows' fingerprint that they have another policy or fold."""
    if setting.policy is None:
        return
    _, policy, folds = (fingerprint or "none/none/unfolded").split("/")
    if policy != setting.policy or (folds != "unfolded") != setting.fold:
        raise CacheRefused(
            f"setting {setting.name!r}: the workers' rows are {fingerprint}, so figures would be of another cache; "
            f"allowed: policy {setting.policy}, {'folded' if setting.fold else 'unfolded'}. Let flashinfer_nvfp4 write "
            "the rows (FLASHINFER_NVFP4_BACKEND unset), or leave this out of --settings."
        )


@contextmanager
def environment(setting: Setting) -> Iterator[None]:
    """The variables from which the workers of an engine take policy and fold, for the length of one engine."""
    wanted = {POLICY: setting.policy, FOLD: "on" if setting.fold else "off"}
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
