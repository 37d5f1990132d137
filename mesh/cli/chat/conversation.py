"""What was said so far: the only state of a chat, sent whole with every question. Pure."""

from __future__ import annotations

import json


class Conversation:
    """Invariant: after the system message, user and assistant take turns; chat templates of models insist on it."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[tuple[str, str]] = []  # (question, answer)
        self.unanswered: str | None = None  # the last question, if its answer failed or was stopped before it began

    def messages(self, question: str) -> list[dict[str, str]]:
        """What to send to have `question` answered."""
        return [*self._said(), {"role": "user", "content": question}]

    def answered(self, question: str, answer: str) -> None:
        """Take in a turn. An answer that was stopped counts as far as it got; with nothing there is no turn."""
        if answer:
            self._turns.append((question, answer))
            self.unanswered = None
        else:
            self.unanswered = question

    def take_back(self) -> str | None:
        """The last question, to be asked again; its answer is forgotten. None if there is none."""
        if self.unanswered is not None:
            return self.unanswered
        return self._turns.pop()[0] if self._turns else None

    def clear(self) -> None:
        """Forget what was said. The system message stays."""
        self._turns.clear()
        self.unanswered = None

    def to_json(self) -> str:
        """As the value of `messages` in the client library, which can go on from it."""
        return json.dumps(self._said(), ensure_ascii=False, indent=2) + "\n"

    def to_markdown(self) -> str:
        return "\n\n".join(f"**{said['role']}**\n\n{said['content'].strip()}" for said in self._said()) + "\n"

    def _said(self) -> list[dict[str, str]]:
        said = [] if self.system is None else [{"role": "system", "content": self.system}]
        for question, answer in self._turns:
            said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return said
