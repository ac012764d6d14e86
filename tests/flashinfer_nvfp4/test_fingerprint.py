"""The row fingerprint: equal exactly where rows mean the same."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from flashinfer_nvfp4.errors import FingerprintMismatch
from flashinfer_nvfp4.fingerprint import fingerprint, require_same

FOLDS = {"model.layers.0.self_attn": 7, "model.layers.1.self_attn": 5, "model.layers.2.self_attn": 0}


def test_it_spells_format_policy_and_folds() -> None:
    """The digest is SHA-256 over the folded layers as sorted JSON pairs, recomputed here."""
    digest = hashlib.sha256(b'[["0", 7], ["1", 5]]').hexdigest()[:16]

    assert fingerprint("search", FOLDS) == f"nvfp4_ds_mla-352-1/search/2-{digest}"
    assert fingerprint("rtn", {}) == "nvfp4_ds_mla-352-1/rtn/unfolded"


def test_what_does_not_change_a_row_does_not_change_it() -> None:
    """Order, unfolded layers, and what a wrapper prepends to a layer's name."""
    same = [
        dict(reversed(FOLDS.items())),
        {name: k for name, k in FOLDS.items() if k},
        {f"language_model.{name}.attn": k for name, k in FOLDS.items()},
        {"layers.0": 7, "layers.1": 5},
    ]

    assert {fingerprint("rtn", folds) for folds in same} == {fingerprint("rtn", FOLDS)}
    assert fingerprint("rtn", {"model.layers.0.self_attn": 0}) == fingerprint("rtn", {})


def test_what_changes_a_row_changes_it() -> None:
    others = [
        fingerprint("search", FOLDS),
        fingerprint("rtn", {}),
        fingerprint("rtn", {**FOLDS, "model.layers.2.self_attn": 1}),
        fingerprint("rtn", {**FOLDS, "model.layers.1.self_attn": -5}),
        fingerprint("rtn", {"model.layers.0.self_attn": 5, "model.layers.1.self_attn": 7}),
        fingerprint("rtn", {"model.layers.10.self_attn": 7, "model.layers.1.self_attn": 5}),
        fingerprint("rtn", {"a": 7, "b": 5}),
    ]

    assert len({*others, fingerprint("rtn", FOLDS)}) == len(others) + 1


def test_it_is_the_same_in_another_process() -> None:
    code = f"from flashinfer_nvfp4.fingerprint import fingerprint; print(fingerprint('rtn', {FOLDS!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == fingerprint("rtn", FOLDS)


def test_it_loads_only_the_standard_library() -> None:
    code = "import flashinfer_nvfp4.fingerprint, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_equal_fingerprints_pass() -> None:
    require_same(fingerprint("rtn", FOLDS), fingerprint("rtn", FOLDS), "stored block")


@pytest.mark.parametrize("mine", [fingerprint("rtn", FOLDS), None, ""])
@pytest.mark.parametrize("theirs", [None, ""])
def test_rows_without_a_fingerprint_are_refused_even_by_rows_without_one(mine: str | None, theirs: str | None) -> None:
    with pytest.raises(FingerprintMismatch, match=f"stored block has rows {theirs!r}.*differ in the form"):
        require_same(mine, theirs, "stored block")


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            fingerprint("search", FOLDS),
            r"prefill worker 3 has rows .*search.*this side .*rtn.*differ in codec policy, and",
        ),
        (
            fingerprint("rtn", {}),
            r"unfolded.*differ in latent folds, and.*allowed: equal fingerprints. Give all workers",
        ),
        (fingerprint("search", {}), r"differ in codec policy and latent folds, and"),
        (fingerprint("rtn", FOLDS).replace("352-1", "352-2"), r"differ in row format, and"),
        ("", r"has rows ''.*differ in the form of the fingerprint"),
        ("rtn", r"has rows 'rtn'.*differ in the form of the fingerprint"),
    ],
)
def test_rows_of_another_kind_are_refused(theirs: str, message: str) -> None:
    with pytest.raises(FingerprintMismatch, match=message):
        require_same(fingerprint("rtn", FOLDS), theirs, "prefill worker 3")


@pytest.mark.parametrize("policy", ["", "a/b"])
def test_a_policy_that_would_blur_the_parts_is_refused(policy: str) -> None:
    with pytest.raises(ValueError, match=r"policy='.*' cannot be told from the other parts.*without '/'"):
        fingerprint(policy, {})


def test_one_layer_with_two_exponents_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer 0 has the exponents 7 and 6.*one exponent a layer.*'draft.layers.0'"):
        fingerprint("rtn", {"model.layers.0.self_attn": 7, "draft.layers.0": 6})
