"""The schema of a trace: one line of JSON for the header, then one for every token emitted.

`docs/trace-format.md` describes it for people who write traces without this package.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fairdraft.audit.subject import refuse_lossy
from fairdraft.stats.tokens import Source

__all__ = [
    "LAWS",
    "OPTIONAL_FIELDS",
    "REQUIRED_FIELDS",
    "SCHEMA",
    "SOURCES",
    "TraceHeader",
    "pack",
    "prompt_hash",
    "unknown_fields",
    "unpack",
]

SCHEMA = "fairdraft/trace/1"
#: fields that every token's line has, null where the schema allows it
REQUIRED_FIELDS = (
    "request",
    "seed",
    "prompt",
    "position",
    "slot",
    "token",
    "source",
    "target",
)
#: fields that a token's line may have
OPTIONAL_FIELDS = (
    "sample",
    "before",
    "ids",
    "cell",
    "draft",
    "drafted",
    "drafted_cell",
    "point_mass",
    "unfiltered",
    "raw_draft",
    "params",
)
#: the laws of a line; only the target's is always there
LAWS = ("target", "draft", "unfiltered", "raw_draft")
#: names of `Source` in a trace
SOURCES: dict[str, Source] = {source.name.lower(): source for source in Source}
#: fields of one's own begin so
FOREIGN = "x_"
#: float32 numbers printed in decimal are off by less
DEFAULT_EPS0 = 1e-5

_SAMPLERS = ("race", "gumbel", "inverse_cdf", "unknown")
_SCORINGS = ("own logits", "logprobs", "rescored")
_PACKED = {"f4": "<f4", "f8": "<f8", "i4": "<i4", "i8": "<i8"}
# parameters that leave a law as it is, if they are not off at 0
_NEUTRAL = {"temperature": 1, "top_p": 1, "repetition_penalty": 1, "typical_p": 1}
# what says nothing about the law
_HARMLESS = ("seed", "n", "max_tokens", "min_tokens", "ignore_eos", "stop")


@dataclass(frozen=True)
class TraceHeader:
    """What holds for every token of a trace.

    Attributes:
        vocab_size: V.
        params: Sampler parameters of every request by their usual names, JSON values;
            `temperature` at least.
        engine: Who decoded, one line for people.
        sampler: "race", "gumbel", "inverse_cdf" or "unknown": how tokens are drawn.
        rule: Verification rule, "token", "block" or "common_noise"; None if unknown.
        laws: "processed" if target and draft are what is sampled, after temperature and filters;
            "raw" if before. Raw ones can be judged where the parameters change nothing.
        values: "probabilities" or "logprobs" (natural logarithms).
        speculative: Whether drafts were tested; the trace must then show some.
        scoring: Where the laws come from: "own logits", "logprobs" or "rescored".
        eps0: Total variation that rounding may have put into a law.
        duplicates: Several texts may share seed, prompt and sample, and are expected to agree.

    Raises:
        ValueError: If a value is none of its kind.
    """

    vocab_size: int
    params: dict[str, Any]
    engine: str = "an engine"
    sampler: str = "unknown"
    rule: str | None = None
    laws: str = "processed"
    values: str = "probabilities"
    speculative: bool = True
    scoring: str = "own logits"
    eps0: float = DEFAULT_EPS0
    duplicates: bool = False
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not _is_int(self.vocab_size) or self.vocab_size < 2:
            raise ValueError(f"vocab_size is {self.vocab_size!r}; give the number of ids")
        if not isinstance(self.params, dict) or not _is_number(self.params.get("temperature")):
            raise ValueError(
                f"params are {self.params!r}; give the sampler parameters by name, temperature at "
                "least"
            )
        refuse_lossy(self.rule)
        for name, known in (
            ("sampler", _SAMPLERS),
            ("rule", ("token", "block", "common_noise", None)),
            ("laws", ("processed", "raw")),
            ("values", ("probabilities", "logprobs")),
            ("scoring", _SCORINGS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {known}")
        for name in ("speculative", "duplicates"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give true or false")
        if not _is_number(self.eps0) or not 0 <= self.eps0 < 0.5:
            raise ValueError(f"eps0 is {self.eps0!r}; give a number from 0 to below 0.5")
        if not isinstance(self.engine, str):
            raise ValueError(f"engine is {self.engine!r}; give its name as a string")

    def document(self) -> dict[str, Any]:
        """The header's line, JSON values, the schema first."""
        fields = asdict(self)
        extra = fields.pop("extra")
        return {"schema": SCHEMA, **fields, **extra}

    @classmethod
    def read(cls, document: Any) -> TraceHeader:
        """Reads a header's line.

        Raises:
            ValueError: If it is none, or of another schema; the message says what is wrong.
        """
        if not isinstance(document, dict) or "schema" not in document:
            raise ValueError(f'there is no header {{"schema": "{SCHEMA}", ...}}')
        if document["schema"] != SCHEMA:
            raise ValueError(f"the schema is {document['schema']!r}; this version reads {SCHEMA!r}")
        fields = {name: value for name, value in document.items() if name != "schema"}
        extra = {name: fields.pop(name) for name in list(fields) if name.startswith(FOREIGN)}
        known = set(cls.__dataclass_fields__) - {"extra"}
        unknown = sorted(set(fields) - known)
        if unknown:
            raise ValueError(
                f"the header has the field {unknown[0]!r}, which the schema does not know; begin "
                f"the names of fields of your own with {FOREIGN}"
            )
        missing = [
            name
            for name in ("vocab_size", "params", "laws", "values", "speculative")
            if name not in fields
        ]
        if missing:
            raise ValueError(f"the header lacks {', '.join(missing)}")
        return cls(**fields, extra=extra)

    def changing_parameter(self) -> str | None:
        """The first parameter that makes the sampled law another than the raw one, or None."""
        for name, value in self.params.items():
            if name in _HARMLESS or value is None or value is False:
                continue
            if name == "top_k" and _is_number(value) and value <= 0:
                continue
            if value != _NEUTRAL.get(name, 0):
                return f"{name} = {value!r}"
        return None


def unknown_fields(document: dict[str, Any]) -> list[str]:
    """Names in a token's line that the schema does not know, sorted."""
    names = set(document) - set(REQUIRED_FIELDS) - set(OPTIONAL_FIELDS)
    return sorted(name for name in names if not name.startswith(FOREIGN))


def prompt_hash(token_ids: Sequence[int]) -> str:
    """Tells prompts apart: 32 hex digits of the SHA-256 of their ids, int64 little-endian."""
    packed = struct.pack(f"<{len(token_ids)}q", *token_ids)
    return hashlib.sha256(packed).hexdigest()[:32]


def pack(numbers: np.ndarray) -> str:
    """Writes numbers in their own bits: "f4:", "f8:", "i4:" or "i8:" and base64, little-endian.

    Args:
        numbers: float32, float64 (other floats become it) or integers [n].
    """
    if numbers.dtype.kind == "f":
        code = "f4" if numbers.dtype == np.float32 else "f8"
    else:
        is_small = not numbers.size or np.abs(numbers).max() < 1 << 31
        code = "i4" if is_small else "i8"
    data = np.ascontiguousarray(numbers, np.dtype(_PACKED[code])).tobytes()
    return f"{code}:{base64.b64encode(data).decode()}"


def unpack(value: Any) -> np.ndarray:
    """Reads a list of numbers, or what `pack` wrote.

    Returns:
        [n], float32 or float64, int64 if all are integers. null in a list is minus infinity, the
        logarithm of 0.

    Raises:
        ValueError: If it is neither; the message says what it is.
    """
    if isinstance(value, str):
        code, _, text = value.partition(":")
        if code not in _PACKED:
            raise ValueError(f"begins with {code[:8]!r}, not with one of {', '.join(_PACKED)}")
        try:
            data = base64.b64decode(text, validate=True)
            numbers = np.frombuffer(data, np.dtype(_PACKED[code]))
        except (ValueError, binascii.Error):
            raise ValueError("is no base64 of whole numbers") from None
        return numbers.astype(np.int64) if code[0] == "i" else numbers
    if not isinstance(value, list):
        raise ValueError(f"is {str(value)[:40]!r}, neither a list nor packed numbers")
    if not all(item is None or _is_real(item) for item in value):
        bad = next(item for item in value if item is not None and not _is_real(item))
        raise ValueError(f"holds {str(bad)[:40]!r}, which is no number")
    if value and all(_is_int(item) for item in value):
        try:
            return np.array(value, np.int64)
        except OverflowError:
            raise ValueError("holds a number beyond 64 bits") from None
    return np.array([-math.inf if item is None else item for item in value], np.float64)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_real(value) and math.isfinite(value)
