// What happened, newest first.

import { byId, make, setHidden, setText } from "/page/dom.js";
import { clock } from "/page/format.js";

const MAX_EVENTS = 100;
const MARKS = { good: "●", info: "●", warn: "▲", bad: "■" };

export class EventList {
  #list = byId("events");
  #items = new Map();
  #offsetMs = 0; // of the reader's clock to the gateway's

  /** The gateway's clock, which is no time of day. */
  now(seconds) {
    this.#offsetMs = Date.now() - seconds * 1000;
  }

  /** New ones, and old ones that have grown. */
  add(events) {
    for (const event of events) {
      this.#items.get(event.id)?.remove();
      const item = this.#item(event);
      this.#items.delete(event.id);
      this.#items.set(event.id, item);
      this.#list.prepend(item);
    }
    for (const [id, item] of this.#items) {
      if (this.#items.size <= MAX_EVENTS) break;
      item.remove();
      this.#items.delete(id);
    }
    setHidden(byId("events-empty"), this.#items.size > 0);
  }

  /** Forget them: another gateway process counts from one again. */
  clear() {
    this.#items.clear();
    this.#list.replaceChildren();
  }

  #item(event) {
    const mark = make("span", "mark", MARKS[event.level] ?? "●");
    mark.setAttribute("aria-hidden", "true");
    const time = make("time", "muted");
    setText(time, clock(event.at * 1000 + this.#offsetMs));
    const words = make("span", "event-words");
    if (event.subject) words.append(make("strong", "", event.subject), " ");
    words.append(event.text);
    const item = make("li", "event", time, mark, words);
    item.dataset.level = event.level in MARKS ? event.level : "info";
    return item;
  }
}
