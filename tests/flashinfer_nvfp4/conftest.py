"""Asserts of the checks that several test files run are told like those of the files themselves."""

import pytest

pytest.register_assert_rewrite("encode_checks", "gather_checks", "decode_checks", "stage_checks", "prefill_checks")
