"""The frontend's Python for each token, without Dynamo: every cut of a stream gives the same deltas in the end."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from glm_turns import Case, cases

from dynamo_structural_tags.frontend.choice import Choice, CountedCalls
from dynamo_structural_tags.frontend.detokenize import Detokenizer, TokenBytes, byte_letters
from dynamo_structural_tags.frontend.history import with_parsed_arguments
from dynamo_structural_tags.frontend.inbox import Inbox, merged
from dynamo_structural_tags.frontend.logprobs import entries
from dynamo_structural_tags.frontend.prompt import Template
from dynamo_structural_tags.frontend.refusal import RefusedRequest
from dynamo_structural_tags.frontend.stops import StopStrings
from dynamo_structural_tags.glm_format import MARKS
from dynamo_structural_tags.parser import parse_output
from dynamo_structural_tags.stream import GlmStream

MARKERS = sorted(MARKS)
CASES = [case for case in cases() if not any(0xD800 <= ord(letter) < 0xE000 for letter in case.raw)]


class ByteLevel:
    """Named like the decoder of byte-level tokenizers."""


class _Tokenizer:
    """What `TokenBytes` asks of a tokenizer: a token for each byte, then the markers, then a special token."""

    decoder: Any = ByteLevel()

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        letters = byte_letters()
        added = {marker: 256 + place for place, marker in enumerate([*MARKERS, "<|user|>", "<中>"])}
        return letters | added

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        special = type("Token", (), {"special": True})
        return {256 + len(MARKS): special}


TABLE = TokenBytes(_Tokenizer())
SPECIAL = 256 + len(MARKS)


def _ids(text: str) -> list[int]:
    """Bytes, and markers as single tokens."""
    found, place = [], 0
    while place < len(text):
        marker = next((mark for mark in MARKERS if text.startswith(mark, place)), None)
        found += [256 + MARKERS.index(marker)] if marker else [*text[place].encode()]
        place += len(marker or text[place])
    return found


def _choice(case: Case, **options: Any) -> Choice:
    stream = GlmStream(case.tools, case.tool_choice, counts=CountedCalls())
    return Choice(0, Detokenizer(TABLE), StopStrings([]), stream, **options)


def _read(choice: Choice, parts: list[list[int]], finish: str) -> tuple[str, str, list[Any], str]:
    """What a client puts together."""
    reasoning, content, calls, reason = "", "", [], ""
    for place, part in enumerate(parts):
        for made in choice.feed(part, finish if place == len(parts) - 1 else None):
            delta = made["delta"]
            reasoning += delta.get("reasoning_content", "")
            content += delta.get("content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
            reason = made["finish_reason"] or reason
    return reasoning, content, calls, reason


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_cut_gives_what_the_parser_reads(case: Case) -> None:
    ids = _ids(case.raw)
    parsed = parse_output(case.raw, case.tools, finish_reason=case.finish, tool_choice=case.tool_choice)
    texts = [(name, json.dumps(arguments)) for name, arguments in parsed.calls]
    cuts = [[ids], [[number] for number in ids], *([ids[:cut], ids[cut:]] for cut in range(1, len(ids)))]
    for parts in cuts:
        reasoning, content, calls, reason = _read(_choice(case), parts, case.finish)

        assert (reasoning, content, reason) == (parsed.reasoning, parsed.content, parsed.finish_reason)
        complete = calls[: len(calls) - len(parsed.truncated)]
        assert [(name, json.dumps(json.loads(text))) for name, text in complete] == texts
        assert [tuple(call) for call in calls[len(complete) :]] == parsed.truncated

    whole = _choice(case, whole_calls=True)
    assert [name for name, _ in _read(whole, cuts[1], case.finish)[2]] == [name for name, _ in parsed.calls]
    assert [note["code"] for note in whole.notes] == [note.code for note in parsed.notes]


def test_bytes_become_text_however_they_are_cut() -> None:
    rng = random.Random(1)
    for _ in range(300):
        data = bytes(rng.choice([*b"a<", 0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x98, 0x80, 0xFF]) for _ in range(9))
        cuts = sorted(rng.choices(range(10), k=3))
        detokenizer = Detokenizer(TABLE)
        pieces = [detokenizer.feed(data[a:b]) for a, b in zip([0, *cuts], [*cuts, 9], strict=True)]

        assert "".join(pieces) + detokenizer.finish() == data.decode("utf-8", "replace")


def test_added_tokens_are_their_own_text_and_special_ones_can_be_left_out() -> None:
    numbers = [97, SPECIAL, SPECIAL + 1, 256]

    assert Detokenizer(TABLE).feed(numbers) == f"a<|user|><中>{MARKERS[0]}"
    assert Detokenizer(TABLE, skip_special=True).feed(numbers) == f"a<中>{MARKERS[0]}"
    assert Detokenizer(TABLE).feed([10_000, 98]) == "b"


def test_tokens_that_are_no_bytes_are_refused() -> None:
    class Metaspace(_Tokenizer):
        decoder = object()

    with pytest.raises(ValueError, match=r"decoder=object.*ByteLevel.*dynamo\.frontend"):
        TokenBytes(Metaspace())


def test_stop_strings_end_the_text_at_their_first_place_however_it_is_cut() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        text = "".join(rng.choices("ab", k=12))
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(2)]
        cuts = sorted(rng.choices(range(13), k=4))
        matcher, shown = StopStrings(stops), ""
        for a, b in zip([0, *cuts], [*cuts, 12], strict=True):
            shown += matcher.feed(text[a:b])
        shown += matcher.finish() if matcher.hit is None else ""

        # Letter by letter, the first one to be complete ends the text; of two at once the longer one.
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
        right = min(ends)[2] if ends else None
        assert matcher.hit == right
        assert shown == (text if right is None else text[: text.find(right)])


@pytest.mark.parametrize("seed", range(150))
def test_stop_strings_are_those_that_a_search_in_the_whole_text_finds(seed: int) -> None:
    """Against the definition: the string that is complete first, the longest of several."""
    rng = random.Random(seed)
    stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 3))]
    text = "".join(rng.choices("aabc", k=rng.randint(0, 40)))
    found = min(((text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text), default=None)

    matcher, shown, rest = StopStrings(stops), "", text
    while rest:
        size = rng.randint(1, 6)
        shown, rest = shown + matcher.feed(rest[:size]), rest[size:]
    shown += matcher.finish() if matcher.hit is None else ""

    assert (matcher.hit, shown) == ((None, text) if found is None else (found[2], text[: found[0] + found[1]]))


@pytest.mark.parametrize("stop", ["a" * 5_000 + "b", "ab" * 2_500 + "c", "a"])
def test_a_hostile_stop_string_costs_in_proportion_to_the_text_and_to_its_length(stop: str) -> None:
    tracemalloc.start()
    try:
        matcher = StopStrings([stop, stop + "x"])
        for _ in range(15_000):
            matcher.feed("a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert matcher.steps <= 2 * 2 * 15_000
    assert peak < 100 * len(stop) + 100_000  # a table of integers for each string


def test_piled_up_messages_are_one_and_lose_nothing() -> None:
    messages: list[dict[str, Any]] = [
        {"token_ids": [1], "log_probs": [-1.0], "finish_reason": None},
        {"token_ids": [2, 3], "finish_reason": None},
        {"token_ids": [4], "log_probs": [-4.0], "finish_reason": "stop", "completion_usage": {"prompt_tokens": 1}},
        {"token_ids": [5], "index": 1, "finish_reason": None},
        {"token_ids": [6], "index": 0, "finish_reason": None},
    ]
    one, *rest = merged(messages)

    assert one["token_ids"] == [1, 2, 3, 4]
    assert one["log_probs"] == [-1.0, None, None, -4.0]
    assert (one["finish_reason"], one["completion_usage"]) == ("stop", {"prompt_tokens": 1})
    assert rest == messages[3:]
    assert [entry["bytes"] for entry in entries(one["token_ids"], one["log_probs"], None, 0, TABLE)] == [[1], [4]]


def test_the_inbox_hands_on_everything_and_the_error_at_the_end() -> None:
    async def stream() -> AsyncIterator[int]:
        yield 1
        yield 2
        await asyncio.sleep(0.01)
        yield 3
        raise RuntimeError("broke")

    async def read() -> list[int]:
        found: list[int] = []
        try:
            async for batch in Inbox(stream()).batches():
                found += batch
        except RuntimeError as error:
            return [*found, len(str(error))]
        return found

    assert asyncio.run(read()) == [1, 2, 3, len("broke")]


def test_reasoning_is_counted_up_to_its_end() -> None:
    case = next(case for case in CASES if case.raw.count("</think>") == 1)
    end = 256 + MARKERS.index("</think>")
    ids = _ids("ab</think>cdef")
    for size in (1, 2, 3, 7):
        choice = _choice(case, think_end=end)
        _read(choice, [ids[start : start + size] for start in range(0, len(ids), size)], "stop")

        assert (choice.reasoning_tokens, choice.tokens) == (2, 7)


def test_arguments_of_earlier_calls_that_are_no_object_are_refused() -> None:
    for text in ("[1]", "{", '{"a": NaN}', "3"):
        call = {"function": {"name": "run", "arguments": text}}
        with pytest.raises(RefusedRequest, match=r"arguments=.*'run'.*Send back what the model wrote"):
            with_parsed_arguments({"role": "assistant", "tool_calls": [call]})


def test_a_template_that_refuses_and_messages_with_images_are_refusals() -> None:
    raising = Template("{{ raise_exception('roles must alternate') }}", {}, hide_tools=True)
    plain = Template("{% for m in messages %}{{ m.content }}{% endfor %}", {}, hide_tools=True)
    image = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}

    with pytest.raises(RefusedRequest, match="roles must alternate"):
        raising.render({"messages": [{"role": "user", "content": "x"}]}, {})
    with pytest.raises(RefusedRequest, match=r"messages\[1\]\.content\[1\]\.type='image_url'"):
        plain.render({"messages": [{"role": "user", "content": "x"}, image]}, {})


def test_a_template_without_reasoning_gets_it_in_the_content() -> None:
    template = Template("{% for m in messages %}[{{ m.content }}]{% endfor %}", {}, hide_tools=True)
    message = {"role": "assistant", "content": "hi", "reasoning_content": ["a", "b"]}

    assert template.render({"messages": [message]}, {}) == "[<think>a\nb</think>hi]"


def test_a_template_of_parts_gets_parts() -> None:
    template = Template(
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", {}, hide_tools=True
    )

    assert template.render({"messages": [{"role": "user", "content": "hi"}]}, {}) == "hi"
