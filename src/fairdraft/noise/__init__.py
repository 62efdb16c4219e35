"""Noise with addresses: one generator, one address per draw, and a trace that proves it."""

from fairdraft.noise.address import Address, address, pack
from fairdraft.noise.key import format_noise_key, parse_noise_key, request_key
from fairdraft.noise.philox import philox4x32
from fairdraft.noise.streams import Level, Stream
from fairdraft.noise.trace import Collision, Discard, Role, Trace, TraceError

#: covers Philox, packing, tile size, arithmetic and key mix; golden tokens pin it
NOISE_VERSION = 1

__all__ = [
    "NOISE_VERSION",
    "Address",
    "Collision",
    "Discard",
    "Level",
    "Role",
    "Stream",
    "Trace",
    "TraceError",
    "address",
    "format_noise_key",
    "pack",
    "parse_noise_key",
    "philox4x32",
    "request_key",
]
