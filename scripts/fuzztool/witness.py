"""The good client: asks all the time, and knows what the answer must be."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from mesh import Client, MeshError
from node.engine.synthetic_vocab import encode, expected_text
from scripts.fuzztool.inputs import MODEL

_MAX_TOKENS = 12  # shorter than any answer ends by itself


@dataclass
class Witness:
    """`answered_s` has how long each good answer took; `failures` what went wrong, in words."""

    address: str
    token: str | None = None
    answered_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="witness")
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        with Client(self.address, token=self.token) as client:
            number = 0
            while not self._is_over.wait(0.01):
                number += 1
                prompt = f"question {number} of a good client"
                began = time.monotonic()
                try:
                    text = client.generate(prompt, model=MODEL, max_tokens=_MAX_TOKENS).text
                except MeshError as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                    continue
                if text == expected_text(encode(prompt), _MAX_TOKENS):
                    self.answered_s.append(time.monotonic() - began)
                else:
                    self.failures.append(f"wrong text for {prompt!r}: {text!r}")
