"""One request from submit to its ending: what has arrived, which attempt is running, whether to try again.

Pure: events and times go in, state comes out. No socket, no clock, no loop.
"""

from __future__ import annotations

import math
import random
from enum import Enum, auto
from typing import Any

from mesh.bodies import End, TokenEntry
from mesh.client.params import Ask
from mesh.client.results import Choice, Chunk, Usage
from mesh.client.retry import History, RetryPolicy
from mesh.errors import DeadlineExceeded, EngineFailed, NodeLost, NotReady, Overloaded, RequestError, error_for
from mesh.messages import RequestHead

DRAINING = "draining"  # a Lost with this word in its reason: the node leaves on purpose (PROTOCOL.md)


class State(Enum):
    WAITING = auto()  # to be submitted from `due` on
    SENT = auto()
    OVER = auto()  # `outcome` says how


class Tracker:
    """Invariant: `token_ids` is a prefix of the answer, each token taken once and in order, whatever the network does.

    Whoever reports an event looks at `state` afterwards: WAITING asks to be submitted once `due` has come.
    Times are monotonic seconds.
    """

    __slots__ = (
        "_ask",
        "_first_sent_at",
        "_first_token_at",
        "_history",
        "_logprobs",
        "_mark",
        "_num_deaths",
        "_num_setbacks",
        "_num_shown",
        "_pieces",
        "_policy",
        "_position",
        "_rng",
        "_texts",
        "_troubled_since",
        "attempt",
        "deadline",
        "due",
        "num_stale",
        "outcome",
        "request_id",
        "state",
        "token_ids",
        "wants_chunks",
    )

    def __init__(
        self,
        request_id: int,
        ask: Ask,
        now: float,
        *,
        policy: RetryPolicy,
        rng: random.Random,
        wants_chunks: bool = False,
    ) -> None:
        self.request_id = request_id
        self.attempt = 1
        self.state = State.WAITING
        self.due = now
        self.deadline = math.inf if ask.timeout_s is None else now + ask.timeout_s
        self.wants_chunks = wants_chunks
        self.token_ids: list[int] = []
        self.num_stale = 0  # entries that were dropped: repeated, or of an older attempt
        self.outcome: Choice | RequestError | None = None
        self._ask = ask
        self._policy = policy
        self._rng = rng
        self._texts: list[str] = []
        self._num_shown = 0  # characters in _texts
        self._logprobs: list[float] = []
        self._pieces: list[bytes] = []
        # (tokens, characters) that this attempt has covered. Behind what we hold only after a rewind, see _resume_at.
        self._position = (0, 0)
        self._mark = (0, 0)  # the position before the last entry that brought tokens
        self._first_sent_at = math.nan
        self._first_token_at = math.nan
        self._history = History()
        self._num_deaths = 0
        self._num_setbacks = 0  # in a row, without a token in between
        self._troubled_since = math.nan  # the first of them

    # --- sending ------------------------------------------------------------------------------------------------------

    def submit(self, now: float) -> tuple[RequestHead, dict[str, Any]]:
        """The head and the body to send now. The request is SENT from here on."""
        if math.isnan(self._first_sent_at):
            self._first_sent_at = now
        self.state = State.SENT
        self._position = self._resume_at()
        num_resumed = self._position[0]
        ask = self._ask
        body: dict[str, Any] = dict(ask.body)
        if num_resumed:
            body["resume"] = self.token_ids[:num_resumed]
        head = RequestHead(
            self.request_id,
            self.attempt,
            ask.model,
            ask.prompt_tokens + num_resumed,
            ask.max_tokens - num_resumed,
            ask.affinity,
            ask.priority,
            0.0 if self.deadline == math.inf else max(self.deadline - now, 0.001),  # 0 would mean none
            self.wants_chunks,
        )
        return head, body

    def _resume_at(self) -> tuple[int, int]:
        """Where the next attempt begins: behind all we hold.

        Except when every token is here and only the end is missing: nothing is left to generate, but text may still be
        held back on the node that died. Then the last entry is generated again, and what we hold of it is skipped.
        """
        if len(self.token_ids) < self._ask.max_tokens:
            return len(self.token_ids), self._num_shown
        return self._mark

    # --- events -------------------------------------------------------------------------------------------------------

    def on_tokens(self, entry: TokenEntry, now: float) -> Chunk | None:
        """Take in what is new; returned as a chunk if the caller streams."""
        if entry.attempt != self.attempt or self.state is not State.SENT:
            self.num_stale += 1
            return None
        start, start_char = self._position
        token_ids, text, end = entry.token_ids, entry.text, entry.end
        stop = start + len(token_ids)
        if entry.index != start or stop > self._ask.max_tokens:
            if entry.index + len(token_ids) <= start and end is None:
                self.num_stale += 1
                return None
            self._die(NodeLost, f"the answer came out of order: token {entry.index} instead of {start}", "", now)
            return None
        if token_ids:
            self._mark = self._position
            self._num_setbacks = 0
        self._position = (stop, start_char + len(text))
        logprobs, pieces = entry.logprobs, entry.pieces
        if start_char < self._num_shown or start < len(self.token_ids):  # after a rewind
            text = text[self._num_shown - start_char :]
            num_held = len(self.token_ids) - start
            token_ids = token_ids[num_held:]
            logprobs = None if logprobs is None else logprobs[num_held:]
            pieces = None if pieces is None else pieces[num_held:]
        if token_ids:
            if not self.token_ids:
                self._first_token_at = now
            self.token_ids.extend(token_ids)
        if text:
            self._texts.append(text)
            self._num_shown += len(text)
        if logprobs:
            self._logprobs.extend(logprobs)
            self._pieces.extend(pieces or ())
        if end is not None:
            self._finish(end, now)
        if self.wants_chunks and (token_ids or text):
            if logprobs is None:
                return Chunk(text, tuple(token_ids), None, self._ask.choice)
            chunk_pieces = None if pieces is None else tuple(pieces)
            return Chunk(text, tuple(token_ids), tuple(logprobs), self._ask.choice, chunk_pieces)
        return None

    def on_lost(self, attempt: int, node: str, reason: str, now: float) -> None:
        """The node is gone. A node that leaves on purpose is no fault of the request's, any other may be."""
        if not self._concerns(attempt):
            return
        if DRAINING in reason:
            self._try_again(f"handed over: {_on(node)}{reason}", now)
        else:
            self._die(NodeLost, f"lost: {_on(node)}{reason}", node, now)

    def on_disconnected(self, reason: str, now: float, *, is_own_fault: bool = False) -> None:
        """The session it was sent over has ended; `is_own_fault`: because this process stood still."""
        if self.state is not State.SENT:
            return
        if is_own_fault:
            self._try_again(reason, now)
        else:
            self._die(NodeLost, reason, "", now)

    def on_error(
        self,
        attempt: int,
        code: str,
        text: str,
        node: str,
        now: float,
        *,
        retry_after_s: float = 0.0,
        default: type[RequestError],
    ) -> None:
        """Rejected or Failed. `default` is the class for a code this version does not know."""
        if not self._concerns(attempt):
            return
        error = error_for(code, default=default)
        sentence = f"{error.code}: {_on(node)}{text}"
        if not error.retryable:
            self._turn_down(error, sentence, text, node, retry_after_s)
        elif error is Overloaded:
            self._on_overload(sentence, text, node, now, retry_after_s)
        elif error is NotReady:
            self._try_again(sentence, now, retry_after_s)
            if self.deadline == math.inf and now - self._troubled_since > self._policy.patience_s:
                self._end(NotReady, f"nothing could run it for {self._policy.patience_s:g} s: {text}", node)
        else:
            self._die(error, sentence, node, now)

    def on_time(self, now: float) -> None:
        """End it if its deadline has passed."""
        if self.state is State.OVER or now < self.deadline:
            return
        self._end(
            DeadlineExceeded,
            f"not finished within timeout_s={self._ask.timeout_s:g}: {len(self.token_ids)} of at most "
            f"{self._ask.max_tokens} tokens had arrived; give it more time or ask for fewer tokens",
        )

    def give_up(self, error: type[RequestError], text: str) -> None:
        """End it for a reason from outside."""
        if self.state is not State.OVER:
            self._end(error, text)

    # --- transitions --------------------------------------------------------------------------------------------------

    def _concerns(self, attempt: int) -> bool:
        if attempt == self.attempt and self.state is State.SENT:
            return True
        self.num_stale += 1
        return False

    def _on_overload(self, sentence: str, text: str, node: str, now: float, retry_after_s: float) -> None:
        """Backpressure: come back later, unless that is later than this caller wants to wait."""
        since = self._troubled_since if self._num_setbacks else now
        patience_s = self._policy.overload_patience_s
        if self.token_ids or patience_s is None:
            self._try_again(sentence, now, retry_after_s)
        elif now + retry_after_s < since + patience_s:
            self._try_again(sentence, now, retry_after_s)
            self.due = min(self.due, since + patience_s)  # the last try, not the first one after that
        else:
            self._turn_down(Overloaded, sentence, text, node, retry_after_s)

    def _turn_down(self, error: type[RequestError], sentence: str, text: str, node: str, retry_after_s: float) -> None:
        if self.attempt > 1:  # or it would only say the same twice
            self._history.add(self.attempt, sentence)
        self._end(error, text, node, retry_after_s)

    def _die(self, error: type[RequestError], sentence: str, node: str, now: float) -> None:
        """A setback that may be the request's own doing."""
        self._num_deaths += 1
        if self._num_deaths < self._policy.max_attempts:
            self._try_again(sentence, now)
            return
        self._history.add(self.attempt, sentence)
        what = "the engine failed" if error is EngineFailed else "what ran it was lost"
        self._end(error, f"given up: {what} {self._num_deaths} times (max_attempts={self._policy.max_attempts})", node)

    def _try_again(self, sentence: str, now: float, retry_after_s: float = 0.0) -> None:
        """At once if this is the first setback after a token and the server asks for no pause: the caller waits."""
        self._history.add(self.attempt, sentence)
        if self._num_setbacks == 0:
            self._troubled_since = now
        self._num_setbacks += 1
        is_at_once = self._num_setbacks == 1 and retry_after_s <= 0
        pause_s = 0.0 if is_at_once else self._policy.delay_s(self._num_setbacks, self._rng, retry_after_s)
        self.due = now + pause_s
        self.attempt += 1
        self.state = State.WAITING

    def _end(self, error: type[RequestError], text: str, node: str = "", retry_after_s: float = 0.0) -> None:
        self.state = State.OVER
        self.outcome = error(
            text,
            request_id=self.request_id,
            node=node,
            retry_after_s=retry_after_s,
            attempts=self._history.sentences(),
        )

    def _finish(self, end: End, now: float) -> None:
        self.state = State.OVER
        token_ids = tuple(self.token_ids)
        has_logprobs = self._ask.logprobs and len(self._logprobs) == len(token_ids)
        has_pieces = has_logprobs and len(self._pieces) == len(token_ids)  # not from a node of before they were told
        self.outcome = Choice(
            index=self._ask.choice,
            text="".join(self._texts),
            token_ids=token_ids,
            finish_reason=end.finish_reason,
            usage=Usage(end.prompt_tokens, end.completion_tokens, end.cached_tokens),
            seed=self._ask.seed,
            logprobs=tuple(self._logprobs) if has_logprobs else None,
            model=end.model,
            node=end.node,
            ttft_s=(self._first_token_at if token_ids else now) - self._first_sent_at,
            total_s=now - self._first_sent_at,
            attempts=self.attempt,
            stop_string=end.stop_string or None,
            pieces=tuple(self._pieces) if has_pieces else None,
        )


def _on(node: str) -> str:
    return f"node {node}: " if node else ""
