// Answers from a mesh, straight from its broker. Written from mesh/PROTOCOL.md alone; the client is in mesh/.
//
//   npm install
//   phi3-broker token --client node          # on the broker's host: prints the token
//   PHI3_MESH_TOKEN=… node mesh_client.js [--address 127.0.0.1:5550] [--max-tokens 64] [--temperature 0] [--seed N]
//                                         [--stop TEXT] [--model NAME] [--timeout SECONDS] [--json] PROMPT …
//
// One prompt is streamed. Several are a batch, one JSON line each, in their order. Ctrl-C cancels, also on the nodes.

import { parseArgs } from "node:util";

import { MeshClient } from "./mesh/client.js";

const { values: options, positionals: prompts } = parseArgs({
  allowPositionals: true,
  options: {
    address: { type: "string", default: process.env.PHI3_MESH_BROKER ?? "127.0.0.1:5550" },
    mesh: { type: "string", default: "default" },
    "max-tokens": { type: "string", default: "64" },
    temperature: { type: "string", default: "0" },
    seed: { type: "string" },
    stop: { type: "string", multiple: true, default: [] },
    "ignore-eos": { type: "boolean", default: false },
    logprobs: { type: "boolean", default: false },
    model: { type: "string", default: "" },
    timeout: { type: "string", default: "0" },
    json: { type: "boolean", default: false },
  },
});

const parameters = {
  max_tokens: Number(options["max-tokens"]),
  temperature: Number(options.temperature),
  stop: options.stop,
  ignore_eos: options["ignore-eos"],
  logprobs: options.logprobs,
  ...(options.seed === undefined ? {} : { seed: Number(options.seed) }),
};
const told = { model: options.model, timeoutS: Number(options.timeout) };

async function stream(client, prompt) {
  const chunks = client.stream({ ...parameters, prompt }, told);
  for await (const { text } of chunks) if (!options.json) process.stdout.write(text);
  console.log(options.json ? JSON.stringify(await chunks.result) : "");
}

async function batch(client) {
  const answers = await client.batch(prompts.map((prompt) => ({ ...parameters, prompt })), told);
  for (const answer of answers) {
    if (answer instanceof Error) process.exitCode = 1;
    console.log(JSON.stringify(answer instanceof Error ? { error: answer.message } : answer));
  }
}

try {
  const client = new MeshClient(options.address.split(","), { token: process.env.PHI3_MESH_TOKEN, mesh: options.mesh });
  process.once("SIGINT", () => client.close());
  await (prompts.length === 1 ? stream(client, prompts[0]) : batch(client)).finally(() => client.close());
} catch (error) {
  console.error([error.message, ...(error.attempts ?? [])].join("\n  "));
  process.exitCode = 1;
}
