"""Parameters of infer and generate → the mesh's. They are the mesh's own, with the names that Triton's backends use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from broker.gateway.fields import Harmless, parsed
from broker.gateway.problems import invalid
from broker.gateway.sampling import Sampling

_UNSUPPORTED: Harmless = {
    "exclude_input_in_output": (True,),
    "return_finish_reason": (False,),
    "sequence_id": (0, ""),
    "sequence_start": None,  # part of every request of some clients, and about sequences only
    "sequence_end": None,
    "binary_data_output": None,  # read by whoever writes the answer
}


class GenerateParameters(Sampling):
    """With Triton's own way to say how long it may take."""

    timeout: int | None = Field(default=None, gt=0, lt=2**63)  # microseconds

    def values(self) -> dict[str, Any]:
        """For the client library, without model and prompt."""
        values = super().values()
        if self.timeout is not None:
            values.setdefault("timeout_s", min(self.timeout / 1e6, 1e9))
        return values


def parameters_of(given: Mapping[str, Any]) -> GenerateParameters:
    """`sampling_parameters` is a JSON object in a text, as Triton's vLLM backend takes it. Raises Problem 400."""
    values = dict(given)
    text = values.pop("sampling_parameters", None)
    if text is not None:
        try:
            sampling = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            sampling = None
        if not isinstance(sampling, dict):
            raise invalid("sampling_parameters", "must be a JSON object, as text")
        values |= sampling
    return parsed(GenerateParameters, values, _UNSUPPORTED)
