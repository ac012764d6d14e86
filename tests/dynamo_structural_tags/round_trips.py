"""Round trips, many of them: from random tools to texts that the grammar allows, to what is read back, to a verdict.

Whatever the grammar allows must come back as calls that fit the original schema, or break a keyword that the build
named as relaxed; and whatever fits the schema must be allowed as the template writes it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xgrammar
from glm_turns import call_text
from json_schemas import Judge, random_value
from token_matcher import Matcher
from tool_lists import random_tools

from dynamo_structural_tags import grammar
from dynamo_structural_tags.ebnf.keys import MOST_ANY_ORDER
from dynamo_structural_tags.grammar import BuiltTool, build
from dynamo_structural_tags.parser import GlmStream, ParsedOutput, collect, parse_output
from dynamo_structural_tags.schema import Verdict

__all__ = ["Counts", "Sampler", "round_trip", "speaks_of", "valid_texts"]

#: Makes a list of tools another one, so that no tag that was kept is taken for it.
_UNKNOWN = {"type": "function", "function": {"name": "unknown", "parameters": {"additionalProperties": False}}}
_CLOSERS = ("</arg_value>", "<arg_value>")


class Sampler:
    """Random texts of a tag over one vocabulary, each token one that the matcher's mask allows.

    Which token: closing ones and, at first, printable ASCII are likelier, so that texts end and most can be read.
    """

    def __init__(self, vocabulary: list[bytes]) -> None:
        self.matcher = Matcher(vocabulary)
        self._vocabulary, self._stop = vocabulary, len(vocabulary)
        self._mask = xgrammar.allocate_token_bitmask(1, len(vocabulary) + 1)
        self._bits = memoryview(self._mask.numpy().view(np.uint8)[0])
        self._closing = [i for i, token in enumerate(vocabulary) if token[:1] in b'"]}<' or b">" in token]
        self._plain = [i for i, token in enumerate(vocabulary) if all(0x20 <= byte < 0x7F for byte in token)]
        self._all = range(len(vocabulary))

    def _allows(self, token: int) -> bool:
        return bool(self._bits[token >> 3] >> (token & 7) & 1)

    def text(self, compiled: xgrammar.CompiledGrammar, rng: random.Random, limit: int = 400) -> str | None:
        """A text; None where it grew over `limit` bytes, or is no UTF-8."""
        matcher = xgrammar.GrammarMatcher(compiled)
        out = bytearray()
        while len(out) <= limit:
            self._mask.fill_(-1)
            matcher.fill_next_token_bitmask(self._mask)
            if self._allows(self._stop) and rng.random() < (0.5 if out.endswith(b"</tool_call>") else 0.05):
                return _decoded(out)
            token = self._token(rng, len(out) / limit)
            if token is None:
                return _decoded(out)
            assert matcher.accept_token(token)
            out += self._vocabulary[token]
        return None

    def _token(self, rng: random.Random, grown: float) -> int | None:
        bits, dice = self._bits, rng.random
        for tokens in (self._closing if dice() < 0.3 + grown else self._plain, self._plain, self._all):
            size = len(tokens)
            for _ in range(6):
                token = tokens[int(dice() * size)]
                if bits[token >> 3] >> (token & 7) & 1:
                    return token
        mask = self._mask.numpy().view(np.uint8)[0]
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: self._stop + 1])
        assert len(allowed), "the grammar leads nowhere"
        token = int(rng.choice(allowed))
        return None if token == self._stop else token


@dataclass
class Counts:
    """What was tried so far. `faults`: what must not be."""

    texts: int = 0
    calls: int = 0
    exact: int = 0
    relaxed: int = 0
    broken: int = 0
    """Calls that break their schema in a keyword that was named as relaxed."""
    cuts: int = 0
    """Texts read once more in pieces."""
    complete: int = 0
    """Valid arguments, as the template writes them, that were accepted."""
    left_out: int = 0
    """Others, whose undeclared keys begin like declared ones of another object: see "With more than 4 kinds"."""
    faults: list[str] = field(default_factory=list)


def _decoded(text: bytearray) -> str | None:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:  # a detokenizer replaces such bytes
        return None


def round_trip(seed: int, sampler: Sampler, counts: Counts, *, texts: int, values: int) -> None:
    """One random list of tools: so many texts of its grammar, and so many random values of each tool."""
    rng = random.Random(seed)
    tools = random_tools(rng)
    reasoning = rng.random() < 0.2
    built = build(
        tools,
        tool_choice=rng.choice(["auto", "required", "required"]),
        parallel=rng.random() < 0.7,
        reasoning="tag" if reasoning else "engine",
    )
    compiled = sampler.matcher.compile(built.tag)
    judges = {tool["function"]["name"]: Judge(tool["function"].get("parameters", {})) for tool in tools}
    made = {tool.name: tool for tool in built.tools}
    for _ in range(texts):
        text = sampler.text(compiled, rng)
        if text is None:
            continue
        counts.texts += 1
        output = parse_output(text, tools, thinking=reasoning)
        if output.truncated:
            counts.faults.append(f"seed {seed}: truncated: {text!r}")
        for (name, arguments), outcome in zip(output.calls, output.outcomes, strict=True):
            counts.calls += 1
            if name not in made:
                counts.faults.append(f"seed {seed}: a call to {name!r}, which is no tool: {text!r}")
            elif (fault := _judged(made[name], judges[name], arguments, outcome, output, counts)) is not None:
                counts.faults.append(f"seed {seed}: {name}: {fault}: {text!r}")
        if rng.random() < 0.2:
            counts.cuts += 1
            if _in_pieces(text, tools, rng, thinking=reasoning) != output:
                counts.faults.append(f"seed {seed}: other in pieces: {text!r}")
    free = sampler.matcher.compile(build(tools).tag)
    for text in valid_texts(rng, tools, values):
        if sampler.matcher.accepts(free, text):
            counts.complete += 1
        elif sampler.matcher.accepts(_with_letters_apart(tools, sampler), text):
            counts.left_out += 1
        else:
            counts.faults.append(f"seed {seed}: valid and not accepted: {text!r}")


def _with_letters_apart(tools: list[dict[str, Any]], sampler: Sampler) -> xgrammar.CompiledGrammar:
    """The grammar without its limit to the kinds of open objects that have first letters of their own."""
    limit, grammar.MOST_OPEN = grammar.MOST_OPEN, 10**6
    try:
        return sampler.matcher.compile(build([*tools, _UNKNOWN]).tag)
    finally:
        grammar.MOST_OPEN = limit


def _judged(
    tool: BuiltTool, judge: Any, arguments: dict[str, Any], outcome: str, output: ParsedOutput, counts: Counts
) -> str | None:
    """What is wrong with a call that the grammar allowed, None if nothing is."""
    fits = judge.is_valid(arguments)
    if tool.verdict is Verdict.EXACT:
        counts.exact += 1
        # An undeclared key may come again: the last one counts.
        twice = {note.code for note in output.notes} <= {"duplicate_argument", "marker_in_value"}
        if outcome != "valid" and not (twice and outcome == "recovered"):
            return f"{outcome}, {output.notes}"
        return None if fits else "invalid by its schema, and the verdict says exact"
    counts.relaxed += 1
    if outcome in ("undeclared", "truncated"):
        return outcome
    if not fits:
        counts.broken += 1
        unnamed = next((error for error in judge.iter_errors(arguments) if not speaks_of(tool, error)), None)
        if unnamed is not None:
            return f"breaks {unnamed.validator} at {unnamed.json_path}, which no message names: {arguments}"
    return None


def speaks_of(tool: BuiltTool, error: Any) -> bool:
    """Whether a message, or a fall to a lower level, says that what the error is about is not enforced in full."""
    named = {message.keyword for message in tool.messages if message.verdict is not Verdict.EXACT}
    return bool(tool.falls) or _about(error, named)


def _about(error: Any, named: set[str]) -> bool:
    above = {str(step) for step in error.absolute_schema_path}
    return error.validator in named or bool(above & named) or any(_about(one, named) for one in error.context)


def _in_pieces(text: str, tools: list[dict[str, Any]], rng: random.Random, *, thinking: bool) -> ParsedOutput:
    stream = GlmStream(tools, "auto", thinking=thinking)
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randint(1, 12)))
    events = []
    for begin, end in zip([0, *places], [*places, len(text)], strict=True):
        events += stream.feed(text[begin:end])
    return collect([*events, *stream.finish()])


def valid_texts(rng: random.Random, tools: list[dict[str, Any]], values: int) -> list[str]:
    """Calls of valid arguments as the template writes them; so many values are tried for each tool."""
    found = []
    for tool in tools:
        function = tool["function"]
        name, schema = function["name"], function.get("parameters", {})
        for _ in range(0 if function.get("strict") else values):
            arguments = _whole(random_value(rng, schema, schema))
            if not isinstance(arguments, dict) or not _written_as_is(schema, arguments, tools, name):
                continue
            if not _undeclared_like_declared(schema, arguments):
                found.append(call_text(name, _ordered(schema, arguments)))
    return found


def _whole(value: Any) -> Any:
    """Fractions that are whole numbers as such, which they equal: that is how the grammar writes them."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(_whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written_as_is(schema: Any, arguments: dict[str, Any], tools: list[dict[str, Any]], name: str) -> bool:
    """Whether the arguments are valid, and their text says so: no marker in it, and it reads back as it was."""
    if not Judge(schema).is_valid(arguments):
        return False
    text = call_text(name, arguments)
    if any(text.count(closer) != len(arguments) for closer in _CLOSERS):
        return False
    return parse_output(text, tools, thinking=False).calls == [(name, arguments)]


def _ordered(schema: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Many keys come in the schema's order, required ones first, undeclared ones last; up to a limit any order will."""
    if len({*schema["properties"], *schema["required"]}) <= MOST_ANY_ORDER:
        return arguments
    ranks = {key: place for place, key in enumerate([*schema["properties"], *schema["required"]])}
    return dict(
        sorted(arguments.items(), key=lambda one: (one[0] not in schema["required"], ranks.get(one[0], len(ranks))))
    )


def _declared(schema: Any) -> set[str]:
    """The names that any object of the schema declares or requires."""
    if isinstance(schema, list):
        return set().union(*map(_declared, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    own = schema.get("properties")
    required = schema.get("required")
    names = {*(own if isinstance(own, dict) else ()), *(required if isinstance(required, list) else ())}
    return names.union(*map(_declared, schema.values()))


def _keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_keys, value)) if value else set()
    return {*value, *set().union(*map(_keys, value.values()))} if isinstance(value, dict) else set()


def _undeclared_like_declared(schema: Any, arguments: dict[str, Any]) -> bool:
    """Whether a key that may be undeclared begins like a declared one, or with a blank: grammars leave those out."""
    top = {*schema["properties"], *schema["required"]}
    first = {name[:1] for name in top} | {" ", "\n"}
    if any(key and key[0] in first for key in arguments.keys() - top):
        return True
    below = set().union(*map(_keys, arguments.values()))
    return any(name != key and name[:1] == key[:1] for key in below for name in _declared(schema))
