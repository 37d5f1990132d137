// The playground: a chat through the gateway's own /v1/chat/completions.

import { byId, make, setHidden, setText } from "/page/dom.js";
import { latency } from "/page/format.js";
import { askForKey, hasKey, withKey } from "/page/key.js";
import { eventsOf, problemOf } from "/page/sse.js";
import * as snippets from "/page/snippets.js";

const NEAR_END_PX = 60;

/** One message on the page. */
class Turn {
  constructor(role, text = "") {
    this.text = document.createTextNode(text);
    this.footer = make("p", "turn-footer muted");
    const body = make("div", "turn-text", this.text);
    this.element = make("article", `turn ${role}`, make("h3", "turn-who", role === "user" ? "You" : "Answer"), body, this.footer);
  }

  append(text) {
    this.text.appendData(text);
  }

  tell(parts) {
    setText(this.footer, parts.filter(Boolean).join(" · "));
  }

  fail(message) {
    const said = make("p", "turn-problem", message);
    said.setAttribute("role", "alert");
    this.element.append(said);
  }
}

/** An answer as it comes, and how fast. */
class Answer {
  text = "";
  usage = null;
  mesh = null;
  finish = "";
  seed; // asking again with it gives the same answer, on any node
  #sentAt = performance.now();
  #firstAt = 0;
  #lastAt = 0;

  take(text) {
    this.#lastAt = performance.now();
    this.#firstAt ||= this.#lastAt;
    this.text += text;
  }

  get facts() {
    const facts = [];
    if (this.mesh) facts.push(this.mesh.node);
    if (this.#firstAt) facts.push(`first token ${latency((this.#firstAt - this.#sentAt) / 1000)}`);
    if (this.usage) {
      const count = this.usage.completion_tokens;
      const seconds = (this.#lastAt - this.#firstAt) / 1000;
      facts.push(`${count} tokens`);
      if (count > 1 && seconds > 0.02) facts.push(`${((count - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (this.finish === "length") facts.push("ended at max tokens");
    if (this.mesh && this.mesh.attempts > 1) facts.push(`went on after ${times(this.mesh.attempts - 1, "interruption")}`);
    if (this.seed !== undefined) facts.push(`seed ${this.seed}`);
    return facts;
  }
}

export class Playground {
  #messages = [];
  #running = null;
  #lastRequest = null;
  #models = "";
  #known = { address: "", meshName: "default" };

  constructor() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#send();
      }
    });
    byId("chat").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#running) this.#running.abort();
    });
    byId("stop").addEventListener("click", () => this.#running?.abort());
    byId("new-chat").addEventListener("click", () => this.#clear());
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", () => this.#copy(button.dataset.copy));
    }
  }

  /** What the mesh serves, and where it is. */
  know(view, meshName) {
    this.#known = { address: view.server.address, meshName };
    const names = view.models.map((model) => model.name);
    if (names.join("\n") === this.#models) return;
    this.#models = names.join("\n");
    const select = byId("model");
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
  }

  async #send() {
    const prompt = byId("prompt");
    const text = prompt.value.trim();
    if (this.#running || !text || !this.#isValid()) return;
    const messages = this.#messages; // of this conversation, whichever is shown when the answer ends
    messages.push({ role: "user", content: text });
    prompt.value = "";
    setHidden(byId("turns-empty"), true);
    this.#show(new Turn("user", text));
    const turn = new Turn("assistant");
    this.#show(turn);
    const isAnswered = await this.#answer(turn, messages);
    if (!isAnswered) {
      messages.pop();
      if (!prompt.value && messages === this.#messages) prompt.value = text; // to try again
    }
  }

  /** Stream the answer into the turn. False if none came at all. */
  async #answer(turn, messages) {
    const request = (this.#lastRequest = this.#request(messages));
    const answer = new Answer();
    if (request.temperature > 0) answer.seed = request.seed ?? Math.floor(Math.random() * 2 ** 31);
    this.#setRunning(new AbortController());
    turn.tell(["waiting for a node …"]);
    try {
      const response = await this.#post({ ...request, seed: answer.seed });
      for await (const { data } of eventsOf(response.body)) {
        if (data === "[DONE]") break;
        this.#take(JSON.parse(data), turn, answer);
      }
      turn.tell(answer.facts);
    } catch (error) {
      turn.tell(answer.facts);
      if (this.#running.signal.aborted) turn.tell([...answer.facts, "stopped"]);
      else turn.fail(error instanceof TypeError ? "The connection to the gateway broke." : error.message);
    } finally {
      this.#setRunning(null);
    }
    const isAnswered = answer.text !== "" || answer.usage !== null;
    if (isAnswered) messages.push({ role: "assistant", content: answer.text });
    return isAnswered;
  }

  async #post(request) {
    for (;;) {
      const response = await fetch("/v1/chat/completions", {
        method: "POST",
        headers: withKey({ "content-type": "application/json" }),
        body: JSON.stringify(request),
        signal: this.#running.signal,
      });
      if (response.ok) return response;
      const problem = await problemOf(response);
      if (response.status !== 401) throw new Error(problem);
      if (!(await askForKey(hasKey() ? `The key is not accepted: ${problem}.` : "Asking needs a key."))) throw new Error(problem);
    }
  }

  #take(event, turn, answer) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) answer.usage = event.usage;
    if (event.mesh) answer.mesh = event.mesh;
    for (const choice of event.choices) {
      if (choice.finish_reason) answer.finish = choice.finish_reason;
      const text = choice.delta.content;
      if (!text) continue;
      answer.take(text);
      const isAtEnd = this.#isAtEnd();
      turn.append(text);
      turn.tell([...answer.facts, "…"]);
      if (isAtEnd) this.#scroll();
    }
  }

  #request(messages) {
    const system = byId("system").value.trim();
    const request = { messages: system ? [{ role: "system", content: system }, ...messages] : [...messages] };
    if (byId("model").value) request.model = byId("model").value;
    for (const [name, id] of [["temperature", "temperature"], ["top_p", "top-p"], ["max_tokens", "max-tokens"], ["seed", "seed"]]) {
      if (byId(id).value !== "") request[name] = Number(byId(id).value);
    }
    return { ...request, stream: true, stream_options: { include_usage: true } };
  }

  #isValid() {
    const wrong = [...byId("parameters").querySelectorAll("input")].find((input) => !input.checkValidity());
    if (!wrong) return true;
    byId("parameters").open = true;
    wrong.reportValidity();
    return false;
  }

  #setRunning(abort) {
    const hadFocus = [byId("send"), byId("stop")].includes(document.activeElement);
    this.#running = abort;
    setHidden(byId("send"), abort !== null);
    setHidden(byId("stop"), abort === null);
    byId("turns").setAttribute("aria-busy", String(abort !== null)); // or each word would be read out as it comes
    if (hadFocus) byId(abort ? "stop" : "prompt").focus();
  }

  #show(turn) {
    byId("turns").append(turn.element);
    this.#scroll();
  }

  #isAtEnd() {
    const turns = byId("turns");
    return turns.scrollHeight - turns.scrollTop - turns.clientHeight < NEAR_END_PX;
  }

  #scroll() {
    byId("turns").scrollTop = byId("turns").scrollHeight;
  }

  #clear() {
    this.#running?.abort();
    this.#messages = [];
    this.#lastRequest = null;
    byId("turns").replaceChildren(byId("turns-empty"));
    setHidden(byId("turns-empty"), false);
    byId("prompt").focus();
  }

  /** What would be sent now, or what was sent last. */
  async #copy(kind) {
    const text = byId("prompt").value.trim();
    const next = text ? this.#request([...this.#messages, { role: "user", content: text }]) : this.#lastRequest;
    const request = next ?? this.#request([{ role: "user", content: "Hello!" }]);
    const code = snippets[kind](request, { origin: location.origin, needsKey: hasKey(), ...this.#known });
    try {
      await navigator.clipboard.writeText(code);
      setText(byId("copied"), "Copied");
      setTimeout(() => setText(byId("copied"), ""), 2000);
    } catch {
      byId("code-text").value = code;
      byId("code-dialog").showModal();
      byId("code-text").select();
    }
  }
}

function times(count, noun) {
  return count === 1 ? `1 ${noun}` : `${count} ${noun}s`;
}
