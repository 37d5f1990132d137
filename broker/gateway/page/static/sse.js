// Server-sent events from a fetch. EventSource cannot send a key.

/** Yields `{event, data}` until the body ends: https://html.spec.whatwg.org/multipage/server-sent-events.html */
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n") };
          event = "message";
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("event:")) {
          event = line.slice(6).trim();
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => {}); // whoever stops reading closes the connection
  }
}

/** What an error answer says, in words. */
export async function problemOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the gateway answered with status ${answer.status}`;
  }
}
