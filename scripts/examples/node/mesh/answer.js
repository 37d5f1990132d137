// One request from its first submission to its ending (PROTOCOL.md, "The life of a request"). No sockets, no timers:
// events go in, `state` and `dueAt` say what is to be done. Times are milliseconds of performance.now().

import { packBody } from "./wire.js";

const RETRYABLE = new Set(["overloaded", "not_ready", "node_lost", "engine_failed"]);
const MAX_DEATHS = 8; // a request that kills nodes must not walk through all of them
const FIRST_PAUSE_MS = 50;
const MAX_PAUSE_MS = 2000;
const PATIENCE_MS = 60_000; // for a mesh in which nothing is ready, without a token in between

export class MeshError extends Error {
  constructor(code, text, { node = "", attempts = [] } = {}) {
    super(`${code}: ${text}`);
    Object.assign(this, { code, node, attempts });
  }
}

export class Answer {
  /** `body` is what PROTOCOL.md calls the body of a request, without `resume`. */
  constructor(requestId, body, { model = "", deadlineAt = Infinity, stream = true } = {}) {
    Object.assign(this, { requestId, body, model, deadlineAt, stream });
    this.maxTokens = body.max_tokens ?? 256;
    this.attempt = 1;
    this.state = "waiting"; // to be submitted from dueAt on; then "sent"; then "over", and `outcome` says how
    this.dueAt = 0;
    this.tokenIds = [];
    this.text = "";
    this.logprobs = [];
    this.outcome = null;
    this.position = { tokens: 0, text: 0 }; // what this attempt has covered; behind what we hold only after a rewind
    this.mark = this.position; // before the last entry that brought tokens
    this.numDeaths = 0;
    this.numSetbacks = 0; // in a row, without a token in between
    this.troubledSince = 0;
    this.history = [];
  }

  /** The RequestHead and the body frame to send now. */
  submit(now) {
    this.state = "sent";
    // `resume` must be shorter than max_tokens. If only the end was lost, the last entry is generated once more.
    const isWhole = this.tokenIds.length >= this.maxTokens;
    this.position = isWhole ? this.mark : { tokens: this.tokenIds.length, text: this.text.length };
    const resume = this.tokenIds.slice(0, this.position.tokens);
    const deadlineS = this.deadlineAt === Infinity ? 0 : Math.max((this.deadlineAt - now) / 1000, 0.001); // 0 is none
    const left = this.maxTokens - resume.length;
    const head = [this.requestId, this.attempt, this.model, 0, left, "", 0, deadlineS, this.stream];
    return [head, packBody(resume.length ? { ...this.body, resume } : this.body)];
  }

  /** Takes in what is new of an entry, and returns it: { text, tokenIds }, or null. */
  onTokens(entry, now) {
    if (this.state !== "sent" || entry.attempt !== this.attempt) return null;
    const { tokens: start, text: startText } = this.position;
    if (entry.index !== start) {
      if (entry.index + entry.tokenIds.length <= start && !entry.end) return null; // repeated
      this.#die(`token ${entry.index} came instead of ${start}`, now);
      return null;
    }
    this.position = { tokens: start + entry.tokenIds.length, text: startText + entry.text.length };
    if (entry.tokenIds.length) {
      this.mark = { tokens: start, text: startText };
      this.numSetbacks = 0;
    }
    const tokenIds = entry.tokenIds.slice(this.tokenIds.length - start); // after a rewind we have some of it
    const text = entry.text.slice(this.text.length - startText);
    const logprobs = entry.logprobs?.slice(this.tokenIds.length - start) ?? [];
    this.tokenIds.push(...tokenIds);
    this.text += text;
    this.logprobs.push(...logprobs);
    if (entry.end) this.#finish(entry.end);
    return tokenIds.length || text ? { text, tokenIds } : null;
  }

  /** Lost by its node. To drain is to leave on purpose, which says nothing about the request. */
  onLost(attempt, node, reason, now) {
    if (this.state !== "sent" || attempt !== this.attempt) return;
    if (reason.includes("draining")) this.#tryAgain(`handed over by ${node}: ${reason}`, now);
    else this.#die(`lost by ${node}: ${reason}`, now);
  }

  /** The connection it was sent over has ended. */
  onDisconnected(reason, now) {
    if (this.state === "sent") this.#die(reason, now);
  }

  /** Rejected or Failed. */
  onError({ attempt, code, text, retryAfterS = 0, node = "" }, now) {
    if (this.state !== "sent" || attempt !== this.attempt) return;
    if (!RETRYABLE.has(code)) this.end(new MeshError(code, text, { node, attempts: this.history }));
    else if (code === "node_lost" || code === "engine_failed") this.#die(`${code}: ${text}`, now);
    else {
      this.#tryAgain(`${code}: ${text}`, now, retryAfterS * 1000);
      const isHopeless = code === "not_ready" && now - this.troubledSince > PATIENCE_MS;
      if (isHopeless) this.end(new MeshError(code, text, { node, attempts: this.history }));
    }
  }

  /** Ends it with an error, if it has not ended. */
  end(error) {
    if (this.state === "over") return;
    this.state = "over";
    this.outcome = error;
  }

  #finish(end) {
    this.state = "over";
    const { text, tokenIds, logprobs, attempt } = this;
    this.outcome = { text, tokenIds, logprobs: this.body.logprobs ? logprobs : null, ...end, attempts: attempt };
  }

  #die(why, now) {
    this.numDeaths += 1;
    if (this.numDeaths < MAX_DEATHS) return this.#tryAgain(why, now);
    this.end(new MeshError("node_lost", `given up after ${MAX_DEATHS} losses`, { attempts: [...this.history, why] }));
  }

  /** At once if this is the first setback after a token and nobody asks for a pause: somebody is reading. */
  #tryAgain(why, now, pauseMs = 0) {
    if (this.numSetbacks === 0) this.troubledSince = now;
    this.numSetbacks += 1;
    const backOffMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (this.numSetbacks - 1)) * (0.5 + Math.random() / 2);
    this.dueAt = this.numSetbacks === 1 && !pauseMs ? now : now + pauseMs + backOffMs;
    this.history.push(`attempt ${this.attempt}: ${why}`);
    this.attempt += 1;
    this.state = "waiting";
  }
}
