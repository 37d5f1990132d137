// A request of the playground as code that does the same. Keys are named, never shown.

/** A line for a POSIX shell. */
export function curl(request, { origin, needsKey }) {
  const lines = [`curl -N ${quote(`${origin}/v1/chat/completions`)}`];
  if (needsKey) lines.push(`-H "Authorization: Bearer $PHI3_API_KEY"`);
  lines.push(`-H 'Content-Type: application/json'`, `-d ${quote(JSON.stringify(request, null, 1))}`);
  return lines.join(" \\\n  ") + "\n";
}

/** A program that uses the openai package. */
export function openai(request, { origin, needsKey }) {
  const { messages, ...rest } = request;
  const key = needsKey ? `os.environ["PHI3_API_KEY"]` : `"-"`;
  return `${needsKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(`${origin}/v1`)}, api_key=${key})
stream = client.chat.completions.create(
${argumentsOf({ ...rest, messages })})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}

/** A program that uses this project's own client. */
export function mesh(request, { address, meshName }) {
  const { messages, stream, stream_options: _, ...rest } = request;
  const where = [address ? literal(address) : "", meshName === "default" ? "" : `mesh=${literal(meshName)}`];
  return `from mesh import Client

with Client(${where.filter(Boolean).join(", ")}) as client:
    stream = client.stream(
${argumentsOf({ messages, ...rest }, "        ")}    )
    for chunk in stream:
        print(chunk.text, end="", flush=True)
    print()
    print(stream.result.node)
`;
}

function argumentsOf(values, indent = "    ") {
  return Object.entries(values).map(([name, value]) => `${indent}${name}=${literal(value, indent)},\n`).join("");
}

/** As Python writes it. */
function literal(value, indent = "") {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[\n${value.map((item) => `${indent}    ${literal(item)},\n`).join("")}${indent}]`;
  return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item)}`).join(", ")}}`;
}

function quote(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
