"""Triton's generate extension: a text in JSON, a text in JSON, or many as a stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.gateway.kserve_api.describe import TEXT_INPUT, TEXT_OUTPUT, VERSION
from broker.gateway.kserve_api.params import GenerateParameters, parameters_of
from broker.gateway.problems import Problem, invalid
from broker.gateway.sse import KEEP_ALIVE
from broker.gateway.wire import json_text, to_json
from mesh import Chunk, Completion


def generate_request(told: dict[str, Any]) -> tuple[str, GenerateParameters]:
    """Parameters stand in `parameters` or beside the text, as backends differ. Raises Problem 400."""
    told = dict(told)
    text = told.pop(TEXT_INPUT, None)
    told.pop("id", None)
    parameters = told.pop("parameters", None) or {}
    if not isinstance(text, str):
        raise invalid(TEXT_INPUT, "must be text")
    if not isinstance(parameters, dict):
        raise invalid("parameters", "must be an object")
    return text, parameters_of({**told, **parameters})


def generate_answer(completion: Completion) -> dict[str, Any]:
    return {"model_name": completion.model, "model_version": VERSION, TEXT_OUTPUT: completion.text}


class TritonFrames:
    """Each event has the new text. There is no last event: the connection's end is the stream's."""

    def __init__(self, model: str) -> None:
        head = to_json({"model_name": model, "model_version": VERSION})[:-1].decode()
        self._start = f'data: {head},"{TEXT_OUTPUT}":'

    def tokens(self, chunks: Sequence[Chunk]) -> bytes:
        text = "".join([chunk.text for chunk in chunks])
        return f"{self._start}{json_text(text)}}}\n\n".encode("utf-8", "backslashreplace") if text else b""

    def idle(self) -> bytes:
        return KEEP_ALIVE

    def end(self, completion: Completion) -> bytes:
        return b""

    def error(self, problem: Problem) -> bytes:
        return b"data: " + to_json({"error": problem.message}) + b"\n\n"
