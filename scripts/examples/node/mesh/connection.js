// One connection to one server: greeting, heartbeats both ways, and its end (PROTOCOL.md, "The life of a connection").

import { Dealer } from "zeromq";

import { CODECS, frames, message } from "./wire.js";

const WELCOME_WITHIN_MS = 3000;

/** `onMessage(message)` from Welcome on; `onDown(error)` once, and nothing after it. */
export class Connection {
  #socket;
  #timer = null;
  #sending = Promise.resolve(); // a socket takes one send at a time
  #isOver = false;
  #heardAt = performance.now();

  /** Resolves to an open connection. Rejects when the server is not there, refuses, or belongs to another mesh. */
  static open(address, { keys, mesh, name }, handlers) {
    return new Promise((resolve, reject) => new Connection(address, { keys, mesh, name }, handlers, resolve, reject));
  }

  constructor(address, { keys, mesh, name }, { onMessage, onDown }, resolve, reject) {
    this.address = address;
    this.#socket = new Dealer({ ...keys, linger: 100, reconnectInterval: -1, sendHighWaterMark: 0 });
    this.end = (error) => {
      if (this.#isOver) return;
      this.#close();
      if (this.welcome) onDown(error);
      else reject(error);
    };
    this.#timer = setTimeout(() => this.end(new Error(`${address} does not answer`)), WELCOME_WITHIN_MS);
    this.#watch();
    this.#socket.connect(address);
    this.#read((told) => {
      if (told.type === "Refused") return this.end(refusal(`${address} refuses: ${told.text} (${told.code})`));
      if (told.type !== "Welcome") return onMessage(told);
      this.welcome = told;
      this.#keepAlive();
      resolve(this);
    });
    const epoch = Math.floor(Math.random() * Number.MAX_SAFE_INTEGER);
    this.send("Hello", ["client", name, epoch, mesh, CODECS]);
  }

  send(...told) {
    this.#sending = this.#sending
      .then(() => this.#socket.closed || this.#socket.send(frames(...told)))
      .catch((error) => this.end(error));
    return this.#sending;
  }

  /** Says Bye, so that the server need not wait for our silence to free what is ours. */
  async close() {
    if (this.#isOver) return;
    await this.send("Bye", []);
    this.#close();
  }

  #close() {
    this.#isOver = true;
    clearInterval(this.#timer);
    this.#socket.close();
  }

  async #read(handle) {
    try {
      for await (const received of this.#socket) {
        if (this.#isOver) return;
        this.#heardAt = performance.now();
        handle(message(received));
      }
    } catch (error) {
      this.end(error);
    }
  }

  /** ZeroMQ could reconnect by itself, but a new connection is a new requester: we must know that this one broke. */
  async #watch() {
    const isOurs = (type) => type === "disconnect" || type === "close" || type.startsWith("handshake:error");
    for await (const { type, error, status } of this.#socket.events) {
      if (this.#isOver) return;
      if (type === "handshake:error:auth") {
        const isRevoked = String(status ?? error?.status).startsWith("5");
        this.end(refusal(`${this.address}: this token ${isRevoked ? "was revoked" : "is not known there"}`));
      } else if (isOurs(type)) {
        this.end(new Error(`${this.address}: ${error?.message ?? type}`));
      }
    }
  }

  /** A Ping each heartbeat; and whoever says nothing for `liveness` of them, or did not run for as long, is gone. */
  #keepAlive() {
    clearTimeout(this.#timer);
    const { heartbeatS, liveness } = this.welcome;
    const leaseMs = heartbeatS * liveness * 1000;
    let sequence = 0;
    let beatAt = performance.now();
    const beat = () => {
      const now = performance.now();
      const pausedMs = now - beatAt;
      beatAt = now;
      if (pausedMs > leaseMs) return this.end(new Error("this process stood still for too long"));
      if (now - this.#heardAt > leaseMs) return this.end(new Error(`${this.address} has fallen silent`));
      this.send("Ping", [(sequence += 1)]);
    };
    this.#timer = setInterval(beat, heartbeatS * 1000);
    beat();
  }
}

/** An answer that will not change by asking again. */
function refusal(text) {
  return Object.assign(new Error(text), { isFinal: true });
}
