"""Sizes of routers under test: presets, and variations of nano-k3's model."""

import dataclasses

from hw.params import Params, from_preset

SIZES = {
    "nano": {},
    "doubled": {"num_experts": 4, "routed_scaling_factor": 2.0},
    "odd": {"num_experts": 5, "num_experts_per_token": 1, "routed_scaling_factor": 2.5},
    "most": {"num_experts": 32, "routed_scaling_factor": 3.99},
    "two": {"num_experts": 2, "first_k_dense_replace": 4},
}


def make_params(size: str) -> Params:
    """Parameters of a size by name."""
    nano = from_preset("nano-k3")
    return dataclasses.replace(nano, model=dataclasses.replace(nano.model, **SIZES[size]))
