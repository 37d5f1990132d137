// One streamed answer over gRPC. The contract is read from the .proto file; nothing has to be generated.
//
//   npm install
//   node grpc_client.js [--address 127.0.0.1:8001] [--max-length 64] [--temperature 0] [--model NAME] PROMPT
//
// PHI3_API_KEY is sent if it is set, and PHI3_CA_FILE (PEM) turns TLS on. Ctrl-C cancels the answer, also on its node.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const PROTO = new URL("../../../broker/gateway/grpc_api/phi3_inference.proto", import.meta.url);
const DEADLINE_S = 120;

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    address: { type: "string", default: "127.0.0.1:8001" },
    "max-length": { type: "string", default: "64" },
    temperature: { type: "string", default: "0" },
    model: { type: "string", default: "" },
  },
});

function connect(address) {
  const { phi3_inference } = grpc.loadPackageDefinition(protoLoader.loadSync(fileURLToPath(PROTO), { keepCase: true }));
  const authority = process.env.PHI3_CA_FILE;
  const credentials = authority
    ? grpc.credentials.createSsl(readFileSync(authority))
    : grpc.credentials.createInsecure();
  return new phi3_inference.Phi3Inference(address, credentials);
}

function metadata() {
  const told = new grpc.Metadata();
  if (process.env.PHI3_API_KEY) told.set("authorization", `Bearer ${process.env.PHI3_API_KEY}`);
  if (options.model) told.set("model", options.model);
  return told;
}

const client = connect(options.address);
const request = {
  prompt: positionals.join(" "),
  max_length: Number(options["max-length"]),
  temperature: Number(options.temperature),
};
const call = client.GenerateTextStream(request, metadata(), { deadline: Date.now() + DEADLINE_S * 1000 });
process.once("SIGINT", () => call.cancel());

try {
  for await (const chunk of call) process.stdout.write(chunk.is_finished ? "\n" : chunk.text_chunk);
} catch (error) {
  console.error(`${grpc.status[error.code]}: ${error.details}`);
  process.exitCode = 1;
} finally {
  client.close();
}
