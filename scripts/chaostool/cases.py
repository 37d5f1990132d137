"""The requests of the load: every way of asking, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from node.engine.synthetic_vocab import WORDS

_LONG_PROMPT_CHARS = 18_000  # past the size from which a node tokenises in a thread


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the client. Its answer is known: see `oracle`."""

    kind: str
    params: dict[str, Any]
    is_stream: bool = True
    prompts: list[str] = field(default_factory=list)  # of a batch
    cancel_after: int | None = None  # chunks


class Cases:
    """Draws the next request. The same seed draws the same requests in the same order."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self._count = 0

    def next(self) -> Case:
        make = self._rng.choices(_KINDS, _WEIGHTS)[0]
        self._count += 1
        return make(self)

    def _base(self, **more: Any) -> dict[str, Any]:
        rng = self._rng
        return {
            "prompt": self._prompt(),
            "max_tokens": rng.choice((1, 8, 20, 40, 60, 90, 120, 250)),
            "ignore_eos": rng.random() < 0.5,
            **more,
        }

    def _prompt(self) -> str:
        rest = "".join(self._rng.choices(WORDS, k=self._rng.randrange(30)))
        return f"{self._seed} {self._count} {self._rng.randrange(10**9)}{rest}"

    def _sampling(self) -> dict[str, Any]:
        rng = self._rng
        return {"temperature": rng.choice((0.3, 1.0)), "top_p": rng.choice((0.9, 1.0)), "seed": rng.randrange(2**62)}

    def _greedy(self) -> Case:
        return Case("greedy stream", self._base())

    def _sampled(self) -> Case:
        return Case("sampled stream", self._base(**self._sampling()))

    def _stop(self) -> Case:
        stop = [*self._rng.sample(WORDS, 2), "模", "round node"]
        sampling = self._sampling() if self._rng.random() < 0.5 else {}
        return Case("stop strings", self._base(stop=stop, **sampling))

    def _logprobs(self) -> Case:
        return Case("logprobs", self._base(logprobs=True))

    def _generate(self) -> Case:
        return Case("generate", self._base(**self._sampling()), is_stream=False)

    def _choices(self) -> Case:
        return Case("n choices", self._base(n=3, **self._sampling()), is_stream=self._rng.random() < 0.5)

    def _batch(self) -> Case:
        params = self._base()
        del params["prompt"]
        prompts = []
        for _ in range(self._rng.randrange(2, 13)):
            self._count += 1
            prompts.append(self._prompt())
        return Case("batch", params, is_stream=False, prompts=prompts)

    def _chat(self) -> Case:
        params = self._base()
        system = {"role": "system", "content": "Be brief."}
        params["messages"] = [system, {"role": "user", "content": params.pop("prompt")}]
        return Case("chat", params)

    def _deadline(self) -> Case:
        return Case("deadline", self._base(timeout_s=self._rng.uniform(0.05, 2.0)))

    def _cancel(self) -> Case:
        return Case("cancel", self._base(max_tokens=400, ignore_eos=True), cancel_after=self._rng.randrange(20))

    def _long_prompt(self) -> Case:
        params = self._base()
        params["prompt"] += "x" * _LONG_PROMPT_CHARS
        return Case("long prompt", params)

    def _long_answer(self) -> Case:
        return Case("long answer", self._base(max_tokens=600, ignore_eos=True))


_SHARES: dict[Callable[[Cases], Case], int] = {
    Cases._greedy: 25,
    Cases._sampled: 15,
    Cases._stop: 10,
    Cases._logprobs: 8,
    Cases._generate: 10,
    Cases._choices: 5,
    Cases._batch: 5,
    Cases._chat: 5,
    Cases._deadline: 5,
    Cases._cancel: 8,
    Cases._long_prompt: 2,
    Cases._long_answer: 2,
}
_KINDS, _WEIGHTS = list(_SHARES), list(_SHARES.values())
