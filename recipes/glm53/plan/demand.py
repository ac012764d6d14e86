"""How many prefill and decode groups agents need: each step a line of arithmetic with its numbers and their source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

from glm53.plan.group import GroupKv
from vllm_blhnc.plan import PlanError

__all__ = ["Demand", "Speed", "Step", "Traffic", "new_tokens", "plan_demand", "turn_rate", "turn_ttft", "with_sessions"]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A traffic profile.

    sessions: agents at the same time. prompt: tokens of a turn's prompt. append: those of them that are new, where the
    rest is cached. cold: share of turns of which nothing is cached. output: tokens of an answer. tool_seconds: between
    an answer and the next turn. ttft_ms, itl_ms: targets, to the first token and between tokens.
    load: share of its speed up to which a prefill group is planned, so that turns do not queue.
    """

    sessions: int
    prompt: int
    append: int
    cold: float
    output: int
    tool_seconds: float
    ttft_ms: float
    itl_ms: float
    load: float

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            low, high = {"cold": (0, 1), "load": (0.01, 1), "tool_seconds": (0, 1e6)}.get(each.name, (1, 1e9))
            if not low <= value <= high:
                name = "--" + each.name.replace("_", "-")
                raise PlanError(f"{name} {value}: it must be from {low:g} to {high:g}. Correct it.")
        if self.append > self.prompt:
            raise PlanError(
                f"--append {self.append} of --prompt {self.prompt}: what is new is a part of the prompt. Correct them."
            )


@dataclass(frozen=True)
class Speed:
    """prefill: tokens a second of one prefill group. decode_sessions: agents of one decode group within the target.

    sources: where each comes from. measured: whether prefill's is, or else is a bound from below.
    """

    prefill: float
    decode_sessions: float
    sources: tuple[str, str]
    measured: bool


@dataclass(frozen=True)
class Step:
    """One line: what is computed, how with its numbers, the result with its unit, and where the numbers come from."""

    name: str
    arithmetic: str
    value: float
    unit: str
    source: str = ""


@dataclass(frozen=True)
class Demand:
    """What the profile needs. ttft_ms: of a turn that waits for nobody but the step under way. kept: share of all
    agents' prompts that prefill's GPUs hold together.
    """

    prefill_groups: int
    decode_groups: int
    ttft_ms: float
    kept: float
    steps: tuple[Step, ...] = field(repr=False)

    @property
    def ratio(self) -> float:
        return self.decode_groups / self.prefill_groups


def turn_rate(traffic: Traffic) -> float:
    """Turns a second of all agents, if both targets are met."""
    return traffic.sessions / _cycle(traffic)


def new_tokens(traffic: Traffic) -> float:
    """Tokens that a turn computes, on average."""
    return (1 - traffic.cold) * traffic.append + traffic.cold * traffic.prompt


def turn_ttft(traffic: Traffic, rank_speed: float, chunk: int) -> float:
    """Milliseconds to a warm turn's first token: half of a step under way, its own tokens, one decode step.

    rank_speed: tokens a second of one rank. chunk: tokens of a full step, which all ranks of a group take together.
    """
    return (min(chunk, traffic.append) / 2 + traffic.append) / rank_speed * 1000 + traffic.itl_ms


def plan_demand(
    traffic: Traffic, speed: Speed, prefill: GroupKv, decode: GroupKv, chunk: int, tier_bytes: int = 0
) -> Demand:
    """Groups for a profile. chunk: prefill's, in tokens. tier_bytes: DRAM behind one prefill group."""
    t, memory = traffic, "the recipe's GPU memory, less weights"
    cycle, rate, new = _cycle(t), turn_rate(t), new_tokens(t)
    demand = rate * new
    groups = max(1, math.ceil(demand / (speed.prefill * t.load)))
    rank_speed = speed.prefill / prefill.ranks
    ttft = turn_ttft(t, rank_speed, chunk)
    flying = rate * t.output * t.itl_ms / 1000
    tokens = flying * (t.prompt + t.output)
    by_kv, by_speed = math.ceil(tokens / decode.tokens), math.ceil(t.sessions / speed.decode_sessions)
    decoding = max(1, by_kv, by_speed)
    held, wanted = groups * prefill.tokens, t.sessions * t.prompt
    in_dram = groups * tier_bytes // prefill.block_bytes * prefill.block_size
    steps = (
        Step(
            "an agent's turn", f"{t.ttft_ms:g} ms + {t.output:,} x {t.itl_ms:.4g} ms + {t.tool_seconds:g} s", cycle, "s"
        ),
        Step("turns", f"{t.sessions:,} / {cycle:.4g} s", rate, "a second"),
        Step("new tokens of a turn", f"{1 - t.cold:.4g} x {t.append:,} + {t.cold:.4g} x {t.prompt:,}", new, "tokens"),
        Step("prefill needed", f"{rate:.4g} x {new:,.0f}", demand, "tokens/s"),
        Step("a prefill group's speed", "given", speed.prefill, "tokens/s", speed.sources[0]),
        Step("prefill groups", f"{demand:,.0f} / ({speed.prefill:,.0f} x {t.load:g}), up", groups, "groups"),
        Step("speed of a rank", f"{speed.prefill:,.0f} / {prefill.ranks} ranks", rank_speed, "tokens/s"),
        Step(
            "TTFT of a warm turn",
            f"({min(chunk, t.append):,} / 2 + {t.append:,}) / {rank_speed:,.0f} + {t.itl_ms:.4g} ms",
            ttft,
            "ms",
            "half a step under way, then its own tokens; no queue",
        ),
        Step("answers under way", f"{rate:.4g} x {t.output:,} x {t.itl_ms:.4g} ms", flying, "at a time"),
        Step("their KV", f"{flying:.4g} x ({t.prompt:,} + {t.output:,})", tokens, "tokens"),
        Step("a decode group's KV", f"{decode.ranks} x {decode.rank_tokens:,}", decode.tokens, "tokens", memory),
        Step("decode groups for the KV", f"{tokens:,.0f} / {decode.tokens:,}, up", by_kv, "groups"),
        Step("agents of a decode group", "given", speed.decode_sessions, "agents", speed.sources[1]),
        Step("decode groups for the speed", f"{t.sessions:,} / {speed.decode_sessions:g}, up", by_speed, "groups"),
        Step("decode groups", f"the larger of {by_kv} and {by_speed}", decoding, "groups"),
        Step("ratio", f"{decoding} / {groups}", decoding / groups, "decode a prefill group"),
        Step(
            "GPUs",
            f"{groups} x {prefill.gpus} + {decoding} x {decode.gpus}",
            _gpus(groups, prefill, decoding, decode),
            "GPUs",
        ),
        Step("prefill's KV", f"{groups} x {prefill.ranks} x {prefill.rank_tokens:,}", held, "tokens", memory),
        Step("all agents' prompts", f"{t.sessions:,} x {t.prompt:,}", wanted, "tokens"),
        Step("held by GPUs", f"{held:,} / {wanted:,}, at most 1", min(1.0, held / wanted), "of prompts"),
        Step(
            "held with DRAM",
            f"({held:,} + {in_dram:,}) / {wanted:,}, at most 1",
            min(1.0, (held + in_dram) / wanted),
            "of prompts",
        ),
    )
    return Demand(groups, decoding, ttft, min(1.0, held / wanted), steps)


def with_sessions(traffic: Traffic, sessions: int) -> Traffic:
    """The same profile with another number of agents."""
    return replace(traffic, sessions=sessions)


def _cycle(traffic: Traffic) -> float:
    return (traffic.ttft_ms + traffic.output * traffic.itl_ms) / 1000 + traffic.tool_seconds


def _gpus(prefill_groups: int, prefill: GroupKv, decode_groups: int, decode: GroupKv) -> int:
    return prefill_groups * prefill.gpus + decode_groups * decode.gpus
