// What a client's token says: the line that `phi3-broker token --client NAME` prints (PROTOCOL.md, "Security").

import { createPrivateKey, createPublicKey } from "node:crypto";

import { blake2b } from "@noble/hashes/blake2.js";

const HEAD = "phi3-client-1-";
const KEY_BYTES = 32;
const CHECK_BYTES = 4;
const Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
const PKCS8_X25519 = Buffer.from("302e020100300506032b656e04220420", "hex"); // stands before the 32 bytes (RFC 8410)

/** The keys for a ZeroMQ socket, and what the mesh of that name is called in a Hello. Throws for a damaged line. */
export function credentials(token, name = "default") {
  const line = token.replace(/\s/g, "");
  if (!line.startsWith(HEAD)) throw new Error(`no token of a client: one begins with ${HEAD}`);
  const raw = Buffer.from(line.slice(HEAD.length), "base64url");
  const parts = raw.subarray(0, -CHECK_BYTES);
  const check = blake2b(Buffer.concat([Buffer.from(HEAD), parts]), { dkLen: CHECK_BYTES });
  if (parts.length <= 2 * KEY_BYTES || !raw.subarray(-CHECK_BYTES).equals(check)) {
    throw new Error("the token is damaged or incomplete: copy the whole line again");
  }
  const secret = parts.subarray(KEY_BYTES, 2 * KEY_BYTES);
  const serverKey = z85(parts.subarray(0, KEY_BYTES));
  const fingerprint = Buffer.from(blake2b(Buffer.from(serverKey), { dkLen: 8 })).toString("hex");
  return {
    keys: { curveServerKey: serverKey, curvePublicKey: z85(publicKeyOf(secret)), curveSecretKey: z85(secret) },
    mesh: `${name}-${fingerprint}`,
  };
}

function publicKeyOf(secret) {
  const key = createPrivateKey({ key: Buffer.concat([PKCS8_X25519, secret]), format: "der", type: "pkcs8" });
  return createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-KEY_BYTES);
}

/** Four bytes are five digits of base 85, the highest first (RFC 32 of ZeroMQ). */
function z85(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 4) {
    const value = bytes.readUInt32BE(at);
    for (let power = 85 ** 4; power >= 1; power /= 85) text += Z85[Math.floor(value / power) % 85];
  }
  return text;
}
