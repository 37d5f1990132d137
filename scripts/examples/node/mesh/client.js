// Completions from a mesh. No caller sees a node or a broker die: what is unfinished goes on elsewhere, at the token
// it had reached. Everything that has to be known for this is in mesh/PROTOCOL.md of the repository.

import { hostname } from "node:os";

import { Answer, MeshError } from "./answer.js";
import { Connection } from "./connection.js";
import { credentials } from "./token.js";
import { CODECS, entries, frames } from "./wire.js";

const RECONNECT_WITHIN_MS = 30_000; // how long requests outlive the loss of every broker
const REDIAL_MS = 100;
const MAX_HEADER_BYTES = 1 << 20;

export { MeshError };

export class MeshClient {
  #addresses;
  #identity;
  #answers = new Map(); // unfinished, by request id: { answer, onChunk, onEnd, timer }
  #connection = null;
  #dialing = null;
  #isClosed = false;
  #lastId = 0;
  #unsent = []; // gathered over one turn of the loop, so that a batch leaves in few messages
  #cancelled = [];

  /** `token` is a client's; without one, plain text for a mesh on this machine that was started with --insecure. */
  constructor(addresses, { token = "", mesh = "default", name = `${hostname()}:${process.pid}` } = {}) {
    this.#addresses = [addresses].flat().map((address) => (address.includes("://") ? address : `tcp://${address}`));
    this.#identity = { name, ...(token ? credentials(token, mesh) : { keys: {}, mesh }) };
  }

  /**
   * The answer as it comes: an async iterator of { text, tokenIds }, with `result`, a promise of the whole.
   * Leaving it early cancels the request. `request` is what PROTOCOL.md calls the body of a request.
   */
  stream(request, options = {}) {
    const chunks = [];
    let wake = () => {};
    let isOver = false;
    const { id, result } = this.#start(request, { ...options, stream: true }, (chunk) => {
      chunks.push(chunk);
      wake();
    });
    const over = () => {
      isOver = true;
      wake();
    };
    result.then(over, over);
    const cancel = () => this.#cancel(id);
    async function* read() {
      try {
        while (chunks.length || !isOver) {
          if (chunks.length) yield chunks.shift();
          else await new Promise((resolve) => (wake = resolve));
        }
        await result; // raises what it ended with
      } finally {
        cancel();
      }
    }
    return Object.assign(read(), { result, cancel });
  }

  /** The whole answer: { text, tokenIds, finishReason, usage, node, attempts, … }. Throws a MeshError. */
  generate(request, options = {}) {
    return this.#start(request, { ...options, stream: false }, () => {}).result;
  }

  /** The answers to many requests, in their order; an answer that failed is a MeshError. */
  batch(requests, options = {}) {
    return Promise.all(requests.map((request) => this.generate(request, options).catch((error) => error)));
  }

  /** Ends what is unfinished and says Bye. */
  async close() {
    this.#isClosed = true;
    this.#endAll(new MeshError("cancelled", "the client was closed"));
    await this.#connection?.close();
  }

  // --- requests ---------------------------------------------------------------------------------------------------

  #start(request, { model = "", timeoutS = 0, stream }, onChunk) {
    if (this.#isClosed) throw new Error("this client is closed");
    const body = { ...request };
    if (body.temperature > 0) body.seed ??= Math.floor(Math.random() * Number.MAX_SAFE_INTEGER); // to be repeatable
    const id = (this.#lastId += 1);
    const deadlineAt = timeoutS ? performance.now() + timeoutS * 1000 : Infinity;
    const answer = new Answer(id, body, { model, deadlineAt, stream });
    const result = new Promise((resolve, reject) => {
      const onEnd = (outcome) => (outcome instanceof Error ? reject(outcome) : resolve(outcome));
      this.#answers.set(id, { answer, onChunk, onEnd, timer: null });
    });
    result.catch(() => {}); // whoever reads a stream hears of it there
    if (timeoutS) setTimeout(() => this.#expire(id), timeoutS * 1000).unref();
    this.#settle(id);
    return { id, result };
  }

  #cancel(id, error = new MeshError("cancelled", "cancelled by the caller")) {
    const held = this.#answers.get(id);
    if (!held) return;
    if (held.answer.state === "sent" && this.#connection) this.#flushSoon(this.#cancelled, id);
    held.answer.end(error);
    this.#settle(id);
  }

  #expire(id) {
    this.#cancel(id, new MeshError("deadline_exceeded", "not finished in time"));
  }

  /** Acts on what an event made of a request. Once too often does no harm. */
  #settle(id) {
    const held = this.#answers.get(id);
    if (!held) return;
    clearTimeout(held.timer);
    const { answer } = held;
    if (answer.state === "over") {
      this.#answers.delete(id);
      held.onEnd(answer.outcome);
      this.#takeTheRoom();
    } else if (answer.state === "waiting") {
      const pauseMs = answer.dueAt - performance.now();
      if (pauseMs > 0) held.timer = setTimeout(() => this.#settle(id), pauseMs);
      else if (this.#connection) this.#flushSoon(this.#unsent, answer);
      else this.#dial();
    }
  }

  /** An ending makes room for one request that an overloaded server turned away: it need not wait out its pause. */
  #takeTheRoom() {
    for (const [id, { answer, timer }] of this.#answers) {
      if (timer && answer.state === "waiting" && answer.history.at(-1)?.includes("overloaded")) {
        answer.dueAt = 0;
        return this.#settle(id);
      }
    }
  }

  #endAll(error) {
    for (const [id, { answer }] of [...this.#answers]) {
      answer.end(error);
      this.#settle(id);
    }
  }

  // --- sending ------------------------------------------------------------------------------------------------------

  #flushSoon(list, item) {
    if (!this.#unsent.length && !this.#cancelled.length) setImmediate(() => this.#flush());
    if (!list.includes(item)) list.push(item);
  }

  #flush() {
    const [cancelled, unsent] = [this.#cancelled, this.#unsent];
    [this.#cancelled, this.#unsent] = [[], []];
    if (!this.#connection) return; // everything unfinished is sent again by the next one
    const { maxBatch } = this.#connection.welcome;
    for (let at = 0; at < cancelled.length; at += maxBatch) {
      this.#connection.send("Cancel", [cancelled.slice(at, at + maxBatch)]);
    }
    const now = performance.now();
    const due = unsent.filter((answer) => answer.state === "waiting" && answer.dueAt <= now);
    for (let at = 0; at < due.length; at += maxBatch) {
      this.#submit(due.slice(at, at + maxBatch).map((answer) => answer.submit(now)));
    }
  }

  #submit(pairs) {
    const fields = [pairs.map(([head]) => head), CODECS];
    if (pairs.length > 1 && frames("Submit", fields)[1].length > MAX_HEADER_BYTES) {
      this.#submit(pairs.slice(0, pairs.length / 2));
      this.#submit(pairs.slice(pairs.length / 2));
    } else {
      this.#connection.send("Submit", fields, pairs.map(([, body]) => body));
    }
  }

  // --- the connection -----------------------------------------------------------------------------------------------

  /** Tries the addresses in turn until one welcomes us; what is unfinished then goes there. */
  #dial() {
    this.#dialing ??= this.#open()
      .catch((error) => this.#endAll(new MeshError("unreachable", error.message)))
      .finally(() => (this.#dialing = null));
  }

  async #open() {
    const giveUpAt = performance.now() + RECONNECT_WITHIN_MS;
    const handlers = {
      onMessage: (told) => this.#on[told.type]?.(told, performance.now()),
      onDown: (error) => this.#onDown(error),
    };
    for (let round = 0; ; round += 1) {
      const failures = [];
      for (const address of this.#addresses) {
        try {
          const connection = await Connection.open(address, this.#identity, handlers);
          if (this.#isClosed) return connection.close();
          this.#connection = connection;
          for (const id of [...this.#answers.keys()]) this.#settle(id);
          return undefined;
        } catch (error) {
          failures.push(error);
        }
      }
      const isHopeless = failures.every((error) => error.isFinal) || performance.now() > giveUpAt;
      if (this.#isClosed || isHopeless) throw new Error(failures.map((error) => error.message).join("; "));
      const pauseMs = REDIAL_MS * Math.min(2 ** round, 10) * (0.5 + Math.random() / 2);
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }

  #onDown(error) {
    this.#connection = null;
    const now = performance.now();
    for (const [id, { answer }] of [...this.#answers]) {
      answer.onDisconnected(error.message, now);
      this.#settle(id);
    }
  }

  #on = {
    Tokens: ({ bodies: [body] }, now) => {
      for (const entry of entries(body)) {
        const held = this.#answers.get(entry.requestId);
        const chunk = held?.answer.onTokens(entry, now);
        if (chunk) held.onChunk(chunk);
        if (held && held.answer.state !== "sent") this.#settle(entry.requestId);
      }
    },
    Rejected: (told, now) => this.#event(told.requestId, (answer) => answer.onError(told, now)),
    Failed: (told, now) => this.#event(told.requestId, (answer) => answer.onError(told, now)),
    Lost: ({ requests, node, reason }, now) => {
      for (const [id, attempt] of requests) this.#event(id, (answer) => answer.onLost(attempt, node, reason, now));
    },
  };

  #event(id, change) {
    const held = this.#answers.get(id);
    if (held) change(held.answer);
    this.#settle(id);
  }
}
