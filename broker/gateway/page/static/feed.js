// The stream of the gateway's reports: connected while the page can be seen, and again after every break.

import { askForKey, hasKey, withKey } from "/page/key.js";
import { eventsOf, problemOf } from "/page/sse.js";

const SILENT_MS = 6000; // a report comes every second
const RETRY_MS = [500, 1000, 2000, 3000];
const HIDDEN_MS = 10_000; // a browser allows six connections to one host: pages that nobody sees give theirs back

/**
 * `on.past(lines)`, `on.mesh(frame)` and `on.events(list)` get what comes; `on.state(state)` is told how the
 * connection does: `{level, text, detail?, action?}`.
 */
export class Feed {
  #on;
  #abort = null;
  #wake = () => {};

  constructor(on) {
    this.#on = on;
    this.#watchVisibility();
  }

  /** For ever. */
  async run() {
    let failures = 0;
    for (;;) {
      await this.#seen();
      const outcome = await this.#connect();
      if (outcome === "hidden" || outcome === "again") {
        failures = 0;
        continue;
      }
      if (outcome === "worked") failures = 0;
      await this.#pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
      failures += 1;
    }
  }

  /** Do not wait any longer. */
  retry() {
    this.#wake();
  }

  async #connect() {
    const abort = (this.#abort = new AbortController());
    let isSilent = false;
    let hasWorked = false;
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        isSilent = true;
        abort.abort();
      }, SILENT_MS);
    };
    let detail = "It does not answer. This page tries again until it does.";
    try {
      heard();
      const answer = await fetch("/page/feed", { headers: withKey(), signal: abort.signal, cache: "no-store" });
      if (answer.status === 401) return await this.#locked(answer);
      if (!answer.ok) {
        this.#on.state({ level: "bad", text: "The gateway refuses", detail: await problemOf(answer) });
        return "failed";
      }
      for await (const { event, data } of eventsOf(answer.body)) {
        heard();
        const told = JSON.parse(data);
        if (event === "end") {
          if (told.code !== "leaving") return "again"; // the key was withdrawn: the next answer says so
          detail = "It is stopping. This page tries again until there is one.";
          break;
        }
        hasWorked = true;
        try {
          this.#on[event]?.(told);
        } catch (error) {
          reportError(error); // a mistake of this page, not of the connection
        }
      }
    } catch {
      if (abort.signal.aborted && !isSilent) return "hidden";
      if (isSilent) detail = "It is silent. This page tries again until it answers.";
    } finally {
      clearTimeout(timer);
      this.#abort = null;
    }
    this.#on.state({ level: "bad", text: "The gateway is gone", detail });
    return hasWorked ? "worked" : "failed";
  }

  async #locked(answer) {
    const isWrong = hasKey();
    const message = isWrong ? await problemOf(answer) : "This gateway answers only to those who have a key.";
    const text = isWrong ? "The key is not accepted" : "A key is needed";
    this.#on.state({ level: "warn", text, detail: isWrong ? `${text}: ${message}` : message, action: "Enter a key" });
    const told = isWrong ? `The key is not accepted: ${message}.` : message;
    if (!(await askForKey(told))) await this.#pause(2 ** 31 - 1); // until `retry`
    return "again";
  }

  #pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #seen() {
    if (!document.hidden) return Promise.resolve();
    return new Promise((resolve) => {
      document.addEventListener("visibilitychange", () => resolve(), { once: true });
    });
  }

  #watchVisibility() {
    let timer = 0;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(() => this.#abort?.abort(), HIDDEN_MS);
    });
  }
}
