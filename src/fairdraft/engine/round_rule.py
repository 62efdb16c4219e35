"""Which rule decides a round, read from the keys of `speculative_config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fairdraft.engine.checks import check_number
from fairdraft.ops.lossy import LOSSY_RULES, LossyRule, Synthetic, Threshold, Typical
from fairdraft.ops.verify import AnyRule

if TYPE_CHECKING:
    from fairdraft.engine.config import SpeculativeConfig

#: what decides a round: a rule of `ops.verify_chain`, or `ops.verify_tree`
RoundRule = AnyRule | Literal["tree"]
#: vLLM's names to ours
RULES: dict[str, RoundRule] = {
    "standard": "token",
    "block": "block",
    "common_noise": "common_noise",
    "tree": "tree",
}
#: parameters of each lossy rule, under the names of Medusa, SGLang and vLLM
_LOSSY_KEYS = {
    "typical": ("posterior_threshold", "posterior_alpha"),
    "threshold": ("accept_threshold_single", "accept_threshold_acc"),
    "synthetic": ("synthetic_acceptance_rates", "synthetic_acceptance_length"),
}


def rule_of(config: SpeculativeConfig) -> RoundRule:
    """The rule that a checked configuration names."""
    method = config.rejection_sample_method
    return RULES[method] if method in RULES else _lossy_rule(config)


def check_rule(config: SpeculativeConfig) -> None:
    """Refuses a rule that is unknown, or lossy and not allowed, and parameters of another."""
    method = config.rejection_sample_method
    if not isinstance(method, str) or (method not in RULES and method not in LOSSY_RULES):
        raise ValueError(
            f"rejection_sample_method={method!r}: must be one of {', '.join(RULES)}, each of "
            f"which keeps the target's law, or of {', '.join(LOSSY_RULES)}, which do not"
        )
    if not isinstance(config.allow_lossy, bool):
        raise ValueError(f"allow_lossy={config.allow_lossy!r}: must be True or False")
    for owner, keys in _LOSSY_KEYS.items():
        for key in keys:
            if owner != method and getattr(config, key) is not None:
                raise ValueError(
                    f"speculative_config: {key}={getattr(config, key)!r} belongs to "
                    f"rejection_sample_method {owner!r}, not to {method!r}"
                )
    if method in LOSSY_RULES:
        if not config.allow_lossy:
            raise ValueError(
                f"rejection_sample_method={method!r} is lossy: the text would not follow the "
                "target's law. Add 'allow_lossy': True if that is meant, or use one of "
                f"{', '.join(RULES)}"
            )
        _lossy_rule(config)


def _lossy_rule(config: SpeculativeConfig) -> LossyRule:
    given = {key: getattr(config, key) for key in _LOSSY_KEYS[config.rejection_sample_method]}
    given = {key: value for key, value in given.items() if value is not None}
    if config.rejection_sample_method == "typical":
        return Typical(**given)
    if config.rejection_sample_method == "threshold":
        if not given:
            raise ValueError(
                "rejection_sample_method='threshold' needs accept_threshold_single or "
                "accept_threshold_acc below 1; without them use 'standard'"
            )
        return Threshold(**given)
    if len(given) != 1:
        raise ValueError(
            "rejection_sample_method='synthetic' needs synthetic_acceptance_rates or "
            "synthetic_acceptance_length, one of the two"
        )
    length, rates = config.synthetic_acceptance_length, config.synthetic_acceptance_rates
    if rates is None:
        length = check_number("synthetic_acceptance_length", length)
        return Synthetic.of_length(length, config.num_speculative_tokens)
    if isinstance(rates, str) or not isinstance(rates, Sequence):
        raise ValueError(f"synthetic_acceptance_rates={rates!r}: must be a list of numbers")
    if len(rates) != config.num_speculative_tokens:
        raise ValueError(
            f"synthetic_acceptance_rates={rates!r}: must be {config.num_speculative_tokens}, one "
            "a draft"
        )
    return Synthetic(tuple(check_number("synthetic_acceptance_rates", r) for r in rates))


def with_method_of_rule(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dictionary with `rule` under vLLM's name and key."""
    given = dict(config)
    if "rule" not in given:
        return given
    rule = given.pop("rule")
    names = {str(rule): method for method, rule in RULES.items()} | {r: r for r in LOSSY_RULES}
    if not isinstance(rule, str) or rule not in names:
        raise ValueError(f"speculative_config: rule={rule!r} must be one of {', '.join(names)}")
    method = given.setdefault("rejection_sample_method", names[rule])
    if method != names[rule]:
        raise ValueError(
            f"speculative_config: rule={rule!r} and rejection_sample_method={method!r} disagree: "
            "leave one out"
        )
    return given
