"""The patch register: verified together, applied once, loud when stock code has moved."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from stockpatch import NotInstalled, Patch, PatchError, Register, UnsupportedVersion, Window, reports
from stockpatch.versions import OVERRIDE

pytestmark = pytest.mark.usefixtures("stock")

WINDOW = Window(("stocklib",), ">=1.0,<2", tested=("1.2.0",))


def _doubled(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def doubled(*args: Any) -> Any:
        return [original(*args)] * 2

    return doubled


def _patch(**changes: Any) -> Patch:
    values: dict[str, Any] = {
        "id": "plan",
        "target": "stocklib:plan",
        "window": WINDOW,
        "why": "Plans once where two plans are needed.",
        "upstream": "https://example.org/issues/1",
        "remove_when": "stocklib plans twice.",
        "replace": _doubled,
    }
    return Patch(**{**values, **changes})


def _stock() -> Any:
    return importlib.import_module("stocklib")


def _state() -> dict[str, object]:
    """Every attribute of the stock module and its classes as stored."""
    module = _stock()
    owners = {"": module, "Base": module.Base, "Backend": module.Backend, "Sibling": module.Sibling}
    return {f"{o}.{k}": v for o, owner in owners.items() for k, v in vars(owner).items() if k[:2] != "__"}


def test_replaces_a_function_and_keeps_the_original_on_it() -> None:
    original = _stock().plan
    report = Register("plug", [_patch(expects=("blocks", "size"))]).apply()

    assert _stock().plan(2, 3) == [6, 6]
    assert _stock().plan.__stockpatch_original__ is original
    assert _stock().plan.__stockpatch_id__ == "plug:plan"
    assert [(r.id, r.status, r.target) for r in report.rows] == [("plan", "applied", "stocklib:plan")]


def test_replaces_a_method_on_the_class_that_defines_it() -> None:
    report = Register("plug", [_patch(target="stocklib:Backend.inherited", expects=("self", "rows"))]).apply()

    assert "inherited" not in vars(_stock().Backend)
    assert _stock().Backend().inherited(1) == _stock().Sibling().inherited(1) == [1, 1]
    assert report.rows[0].target == "stocklib:Base.inherited"


def test_keeps_static_and_class_methods_what_they_are() -> None:
    Register(
        "plug",
        [
            _patch(id="a", target="stocklib:Base.fixed", expects=("value",)),
            _patch(id="b", target="stocklib:Base.made", expects=("cls", "value")),
        ],
    ).apply()
    base, backend = _stock().Base, _stock().Backend

    assert base.fixed(5) == base().fixed(5) == [5, 5]
    assert backend.made(5) == [(backend, 5)] * 2


def test_replaces_properties_constants_and_classes() -> None:
    Register(
        "plug",
        [
            _patch(id="a", target="stocklib:Base.name", replace=lambda p: property(lambda s: p.fget(s) + "!")),
            _patch(id="b", target="stocklib:LIMIT", replace=lambda limit: 2 * limit),
            _patch(id="c", target="stocklib:Sibling", replace=lambda cls: type("Sibling", (cls,), {"x": 1})),
        ],
    ).apply()

    assert (_stock().Base().name, _stock().LIMIT, _stock().Sibling.x) == ("stock!", 128, 1)


@pytest.mark.parametrize(
    ("target", "replace"),
    [
        ("stocklib:plan", _doubled),
        ("stocklib:Backend.run", _doubled),
        ("stocklib:Base.fixed", _doubled),
        ("stocklib:Base.made", _doubled),
        ("stocklib:Base.name", lambda p: property(p.fget)),
        ("stocklib:LIMIT", lambda limit: limit + 1),
    ],
)
def test_applying_twice_changes_nothing_more_and_revert_restores_everything(
    target: str, replace: Callable[[Any], Any]
) -> None:
    before = _state()
    register = Register("plug", [_patch(target=target, replace=replace)])
    register.apply()
    once = _state()
    again = register.apply()

    assert [row.status for row in again.rows] == ["already"]
    assert _state() == once != before

    register.revert()

    assert _state() == before
    assert reports() == ()


def test_two_registers_may_wrap_the_same_function() -> None:
    first, second = Register("one", [_patch()]), Register("two", [_patch()])
    first.apply()
    second.apply()

    assert _stock().plan(1, 1) == [[1, 1], [1, 1]]
    assert first.apply().rows[0].status == second.apply().rows[0].status == "already"

    with pytest.raises(PatchError, match="replaced again"):
        first.revert()
    second.revert()
    first.revert()

    assert _stock().plan(1, 1) == 1


def test_a_patch_undone_by_other_code_is_an_error_and_not_a_second_application() -> None:
    register = Register("plug", [_patch()])
    register.apply()
    _stock().plan = lambda blocks, size: 0

    with pytest.raises(PatchError, match="was replaced by other code"):
        register.apply()


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("stocklib:gone", "stocklib has no 'gone'"),
        ("stocklib:Backend.gone", "stocklib:Backend has no 'gone'"),
        ("stocklib:Gone.run", "stocklib has no 'Gone'"),
        ("stocklib.sub:run", "no module 'stocklib"),
    ],
)
def test_a_missing_target_raises_with_class_name_version_and_file(target: str, missing: str) -> None:
    with pytest.raises(PatchError) as caught:
        Register("plug", [_patch(target=target)]).apply()

    text = str(caught.value)
    for part in (target, missing, "stocklib==1.2.0", "plug/patches.py", "Nothing was applied"):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expects": ("blocks",)}, r"\('blocks', 'size'\) and no longer \('blocks',\)"),
        ({"target": "stocklib:LIMIT", "expects": ("x",)}, "is a int and has no parameters"),
        ({"replace": lambda original: None}, "returned None"),
        ({"replace": lambda original: original}, "unchanged"),
        ({"replace": lambda original: len}, "cannot be marked"),
        ({"target": "stocklib:Base.name", "replace": lambda p: "x"}, "is a property"),
    ],
)
def test_a_target_or_replacement_that_does_not_fit_raises(changes: dict[str, Any], reason: str) -> None:
    before = _state()

    with pytest.raises(PatchError, match=reason):
        Register("plug", [_patch(**changes)]).apply()

    assert _state() == before


def test_nothing_is_replaced_unless_every_target_fits() -> None:
    before = _state()
    register = Register("plug", [_patch(), _patch(id="moved", target="stocklib:Backend.moved")])

    with pytest.raises(PatchError, match="'moved'"):
        register.apply()

    assert _state() == before
    assert reports() == ()


def test_a_failing_write_puts_the_earlier_ones_back() -> None:
    register = Register(
        "plug", [_patch(), _patch(id="frozen", target="builtins:str.upper", replace=lambda up: lambda s: s)]
    )
    before = _state()

    with pytest.raises(TypeError, match="immutable"):
        register.apply()

    assert _state() == before


def test_two_records_for_one_place_are_refused() -> None:
    both = [_patch(target="stocklib:Base.inherited"), _patch(id="b", target="stocklib:Backend.inherited")]

    with pytest.raises(PatchError, match="also replaced by 'plan'"):
        Register("plug", both).apply()


def test_outside_its_window_a_patch_refuses_unless_that_is_by_design() -> None:
    old = Window(("stocklib",), "==1.1.*")
    before = _state()

    with pytest.raises(UnsupportedVersion, match=r"stocklib==1\.2\.0"):
        Register("plug", [_patch(window=old)]).apply()
    assert _state() == before

    report = Register(
        "plug",
        [_patch(id="old", window=old, optional_outside=True, target="stocklib:gone"), _patch(id="new")],
    ).apply()

    assert [(r.id, r.status, r.reason) for r in report.rows] == [
        ("old", "skipped", "stocklib==1.2.0 is outside ==1.1.*"),
        ("new", "applied", ""),
    ]


def test_a_register_window_refuses_although_every_patch_may_be_skipped() -> None:
    old = Window(("stocklib",), "==1.1.*")

    with pytest.raises(UnsupportedVersion):
        Register("plug", [_patch(window=old, optional_outside=True)], window=old).apply()


def test_the_override_lets_a_patch_run_on_an_untested_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "stocklib==1.2.0")
    report = Register("plug", [_patch(window=Window(("stocklib",), "==1.1.*"))]).apply()

    assert report.rows[0].status == "applied"


def test_an_absent_stock_package_is_an_error_even_for_optional_patches() -> None:
    window = Window(("nosuchlib",), "==1.1.*")

    with pytest.raises(NotInstalled):
        Register("plug", [_patch(window=window, optional_outside=True)]).apply()


def test_only_the_named_patches_are_applied_and_the_report_knows_the_rest() -> None:
    register = Register("plug", [_patch(id="a"), _patch(id="b", target="stocklib:LIMIT", replace=lambda n: 0)])

    assert [row.id for row in register.apply(["b"]).rows] == ["b"]
    assert [(r.id, r.status, r.reason) for r in register.report().rows] == [
        ("a", "skipped", "not asked for"),
        ("b", "applied", ""),
    ]
    assert _stock().plan(1, 1) == 1

    with pytest.raises(ValueError, match="no patch 'c'; it has a, b"):
        register.apply(["c"])


def test_one_log_line_a_process_says_what_was_done(caplog: pytest.LogCaptureFixture) -> None:
    old = Window(("stocklib",), "==1.1.*")
    register = Register("plug", [_patch(), _patch(id="old", window=old, optional_outside=True)])
    for _ in range(3):
        register.apply()

    assert [r.getMessage() for r in caplog.records if r.name == "stockpatch"] == [
        "plug: plan applied, old skipped (stocklib==1.2.0 is outside ==1.1.*)"
    ]
    assert [report.plugin for report in reports()] == ["plug"]
    assert [row.status for row in reports()[0].rows] == ["applied", "skipped"]
    register.revert()


def test_obsolete_names_the_records_to_delete() -> None:
    register = Register("plug", [_patch(obsolete=lambda: True), _patch(id="b", obsolete=lambda: False)])

    assert register.obsolete() == ("plan",)


@pytest.mark.parametrize("window", [Window(("stocklib",), "==1.1.*"), Window(("nosuchlib",), "==1.1.*")])
def test_a_record_for_another_release_or_an_absent_one_is_not_obsolete(window: Window) -> None:
    assert Register("plug", [_patch(window=window, obsolete=lambda: True)]).obsolete() == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "stocklib.plan"}, "package.module:Name"),
        ({"target": "stocklib:"}, "package.module:Name"),
        ({"target": "stocklib:a b"}, "package.module:Name"),
        ({"upstream": "see chat"}, "no link"),
        ({"why": " "}, "why is empty"),
        ({"remove_when": ""}, "remove_when is empty"),
        ({"id": ""}, "id is empty"),
    ],
)
def test_a_record_that_does_not_explain_itself_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _patch(**changes)


def test_an_id_is_unique_in_its_register() -> None:
    with pytest.raises(ValueError, match="'plan' is used twice"):
        Register("plug", [_patch(), _patch()])
