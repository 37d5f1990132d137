// Messages to and from frames (PROTOCOL.md, "Encoding" and the two tables after it).

import zlib from "node:zlib";

import { decode, encode } from "@msgpack/msgpack";

const VERSION = 1;
const PLAIN = 0;
const ZSTD = 1;
const EMPTY = Buffer.alloc(0);

/** Packings of bodies that this Node can undo; announced in Hello and Submit, so no other arrives. */
export const CODECS = typeof zlib.zstdDecompressSync === "function" ? ["zstd"] : [];

const TAGS = { Hello: 1, Ping: 2, Submit: 3, Cancel: 4, Query: 5, Bye: 7 };

// Fields by position. What is missing in a shorter array is undefined; more than these are not looked at.
const ANSWERS = {
  16: ["Welcome", "kind", "name", "nodeId", "epoch", "mesh", "heartbeatS", "liveness", "maxBatch", "maxBodyBytes"],
  17: ["Pong", "sequence"],
  18: ["Accepted", "requestIds"],
  19: ["Tokens", "finished", "numTokens"],
  20: ["Rejected", "requestId", "attempt", "code", "text", "retryAfterS", "node"],
  21: ["Lost", "requests", "node", "reason"],
  22: ["Failed", "requestId", "attempt", "code", "text", "node"],
  23: ["Report", "queryId"],
  24: ["Done", "queryId", "ok", "text"],
  25: ["Refused", "code", "text"],
};

/** The frames of a message: `frames("Ping", [3])`. */
export function frames(type, fields, bodies = []) {
  return [EMPTY, Buffer.from(encode([VERSION, TAGS[type], ...fields])), ...bodies];
}

/** A message as an object with its type and fields, and `bodies`. Throws for what is none. */
export function message([empty, header, ...bodies]) {
  if (!header || empty.length) throw new Error("the envelope is not an empty frame and a header");
  const [version, tag, ...values] = decode(header);
  if (version !== VERSION) throw new Error(`the server speaks version ${version} of the protocol, this is ${VERSION}`);
  const [type, ...fields] = ANSWERS[tag] ?? [""];
  const told = { type, bodies };
  fields.forEach((field, at) => (told[field] = values[at]));
  return told;
}

export function packBody(value) {
  return Buffer.concat([Buffer.of(PLAIN), encode(value)]);
}

export function unpackBody(frame) {
  const payload = frame.subarray(1);
  if (frame[0] === ZSTD) return decode(zlib.zstdDecompressSync(payload));
  if (frame[0] !== PLAIN) throw new Error(`a body is packed in a way that is unknown here (${frame[0]})`);
  return decode(payload);
}

/** The entries of a Tokens message. */
export function entries(body) {
  return unpackBody(body).map(([requestId, attempt, index, tokenIds, text, logprobs, end]) => ({
    requestId, attempt, index, tokenIds, text, logprobs, end: end && ending(end),
  }));
}

function ending([finishReason, promptTokens, completionTokens, cachedTokens, node, model, , stopString = ""]) {
  return { finishReason, usage: { promptTokens, completionTokens, cachedTokens }, node, model, stopString };
}
