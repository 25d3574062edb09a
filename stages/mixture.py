"""The mixture of prepare: how weights, sizes, temperature and phases become bytes of each source, and how a source is cleaned.

In: the sections of prepare's params. Out: targets for data/mixing.py and settings for data/cleaning/policy.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from data.cleaning.policy import Cleaning
from data.corpus import BYTES_PER_TOKEN
from data.mixing import BySize, Phase, temperature_shares
from stages.config import Section

Weights = Mapping[str, float | None]


class MixingOptions(Section):
    """How weights become shares."""

    temperature: float = Field(gt=0)
    """Share = amount^(1/T) / sum, amount being the weight, or the source's size where weights are null. 1: in proportion."""


class PhaseOptions(Section):
    """One stretch of training with a mixture of its own."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    tokens: int = Field(gt=0)
    """Its part of text_tokens."""
    weights: dict[str, float] = Field(min_length=1)
    """Source name -> share of the phase; a source that is not named takes no part."""


def check_mixture(text_tokens: int, weights: Weights, generated: Sequence[str], phases: Sequence[PhaseOptions]) -> None:
    """ValueError when weights stand in two places or nowhere, or the phases do not fit. `generated`: sources without a size of their own."""
    given = [name for name, weight in weights.items() if weight is not None]
    if phases:
        _check_phases(text_tokens, weights, given, phases)
    elif given and len(given) < len(weights):
        raise ValueError(f"a weight for every source or for none, not only for {', '.join(given)}")
    elif not given and generated:
        raise ValueError(f"source {', '.join(generated)} makes as much as it is asked for, so it has no size to follow: give every source a weight")


def _check_phases(text_tokens: int, weights: Weights, given: Sequence[str], phases: Sequence[PhaseOptions]) -> None:
    if given:
        raise ValueError(f"with phases, weights stand in the phases: set weight to null for {', '.join(given)} or empty phases")
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):
        raise ValueError(f"phases of different names, not {', '.join(names)}")
    for phase in phases:
        if not set(phase.weights) <= set(weights) or min(phase.weights.values()) <= 0:
            raise ValueError(f"phase '{phase.name}': weights above zero of sources in the mixture ({', '.join(sorted(weights))}), not {phase.weights}")
    unused = sorted(set(weights).difference(*(phase.weights for phase in phases)))
    if unused:
        raise ValueError(f"source {', '.join(unused)} has no weight in any phase; give it one or take it out of the mixture")
    total = sum(phase.tokens for phase in phases)
    if total != text_tokens:
        raise ValueError(f"phases of {text_tokens:,} tokens in all (text_tokens), not {total:,}")


def source_targets(text_tokens: int, weights: Weights, mixing: MixingOptions, phases: Sequence[PhaseOptions]) -> dict[str, int]:
    """Bytes wanted of each source; all of the budget where shares follow from sizes, which are known later."""
    if phases:
        dealt = phase_targets(phases, mixing)
        return {name: sum(phase.targets.get(name, 0) for phase in dealt) for name in weights}
    budget = text_tokens * BYTES_PER_TOKEN
    if by_size(text_tokens, weights, mixing, phases):
        return dict.fromkeys(weights, budget)
    if mixing.temperature != 1:
        return {name: round(budget * share) for name, share in temperature_shares(weights, mixing.temperature).items()}
    whole = sum(weights.values())
    return {name: round(budget * weight / whole) for name, weight in weights.items()}


def phase_targets(phases: Sequence[PhaseOptions], mixing: MixingOptions) -> list[Phase]:
    """The phases in bytes by source."""
    return [Phase(name=phase.name, targets={name: round(phase.tokens * BYTES_PER_TOKEN * share)
                                            for name, share in temperature_shares(phase.weights, mixing.temperature).items()}) for phase in phases]


def by_size(text_tokens: int, weights: Weights, mixing: MixingOptions, phases: Sequence[PhaseOptions]) -> BySize | None:
    """How shares follow from sizes, or None where weights say."""
    if phases or any(weight is not None for weight in weights.values()):
        return None
    return BySize(total_bytes=text_tokens * BYTES_PER_TOKEN, temperature=mixing.temperature)


def make_cleaning(options: dict[str, Any]) -> Cleaning | None:
    """The cleaning of a source, None when there is none. ValueError for an unknown field, rule, language or value."""
    if not options:
        return None
    try:
        return TypeAdapter(Cleaning).validate_json(json.dumps(options, default=str))
    except ValidationError as error:
        issues = "; ".join(f"{'.'.join(map(str, issue['loc']))}: {issue['msg'].removeprefix('Value error, ')}" for issue in error.errors())
        raise ValueError(f"cleaning: {issues}") from None
