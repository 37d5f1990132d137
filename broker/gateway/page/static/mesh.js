// The mesh as it is: totals, nodes, callers.

import { Chart } from "/page/chart.js";
import { byId, make, reconcile, setFill, setHidden, setText } from "/page/dom.js";
import { age, latency, many, number, percent } from "/page/format.js";
import { NodeItem } from "/page/node.js";

const TOTALS = [
  { name: "tokens_per_s", title: "Tokens/s", floor: 10, show: number },
  { name: "ttft_s", title: "First token, p50", floor: 0.05, show: latency, note: "median of the slowest node" },
  { name: "running", title: "Running", floor: 4, show: number },
  { name: "queued", title: "Queued", floor: 4, show: number },
];

/** One of the four numbers on top, with its line. */
class Total {
  constructor({ title, floor, show, note }) {
    this.show = show;
    this.chart = new Chart(floor);
    this.value = make("span", "value", "–");
    this.of = make("span", "muted");
    this.peak = make("span", "peak muted");
    const number = make("dd", "", this.value, this.of, this.peak, this.chart.element);
    this.element = make("div", "total", make("dt", "", title), number);
    if (note) this.element.title = note;
  }

  update(value, of = "") {
    setText(this.value, value === null ? "–" : this.show(value));
    setText(this.of, of);
    setText(this.peak, this.chart.peak > 0 ? `peak ${this.show(this.chart.peak)}` : "");
  }
}

/** One caller and its part of what the mesh gave in the last minute. */
class CallerItem {
  constructor() {
    this.name = make("span", "caller-name");
    this.tag = make("span", "tag", "own key");
    this.share = make("span", "caller-share");
    this.fill = make("span", "fill");
    this.load = make("span", "muted caller-load");
    const bar = make("span", "bar", this.fill);
    bar.setAttribute("aria-hidden", "true");
    this.element = make("li", "caller", this.name, this.tag, this.share, bar, this.load);
  }

  update(caller) {
    setText(this.name, caller.name || "(no name)");
    setHidden(this.tag, !caller.has_own_key);
    setText(this.share, caller.share > 0 ? percent(caller.share) : "–");
    setFill(this.fill, caller.share);
    const parts = [many(caller.connections, "connection"), `${caller.running} running`];
    if (caller.queued) parts.push(`${caller.queued} queued`);
    if (caller.tokens) parts.push(`${number(caller.tokens)} tokens`);
    setText(this.load, parts.join(" · "));
  }
}

/** Draws what the feed tells. */
export class MeshView {
  #totals = new Map(TOTALS.map((total) => [total.name, new Total(total)]));
  #nodes = new Map();
  #callers = new Map();
  #past = {};
  #isFresh = false;

  constructor() {
    byId("totals").append(...[...this.#totals.values()].map((total) => total.element));
  }

  /** The lines from before the page was open, or of the time in which it was not connected. */
  past(lines) {
    this.#past = lines.nodes;
    for (const [name, total] of this.#totals) total.chart.fill(lines.mesh[name] ?? []);
    for (const [key, item] of this.#nodes) item.fill(lines.nodes[key] ?? {});
    this.#isFresh = true; // the next frame is the last sample of these lines already
  }

  /** One report. */
  show(frame) {
    const { view } = frame;
    const isNew = !this.#isFresh;
    this.#isFresh = false;
    byId("mesh").classList.toggle("stale", !frame.is_up);
    for (const [name, total] of this.#totals) {
      const value = view ? view.totals[name] : null;
      if (isNew) total.chart.push(value);
      total.update(value, view && name === "running" && view.totals.slots ? ` / ${view.totals.slots} slots` : "");
    }
    if (!view) {
      for (const item of this.#nodes.values()) item.miss();
      return;
    }
    setText(byId("server"), serverLine(view.server, frame.mesh));
    this.#showNodes(view, isNew);
    this.#past = {}; // a node that comes later has been nowhere in the meantime
    this.#showCallers(view.callers);
  }

  #showNodes(view, isNew) {
    reconcile(byId("nodes"), this.#nodes, view.nodes, (node) => {
      const item = new NodeItem();
      item.fill(this.#past[node.key] ?? {});
      return item;
    });
    if (isNew) for (const node of view.nodes) this.#nodes.get(node.key).push(node);
    const shown = view.nodes.length;
    const more = view.num_nodes > shown ? `, ${view.num_nodes - shown} more not shown` : "";
    setText(byId("nodes-summary"), shown ? `${view.server.num_ready} of ${view.num_nodes} take work${more}` : "");
    setHidden(byId("nodes-empty"), shown > 0);
    setText(byId("nodes-empty"), "No node is known. Start phi3-node on a GPU host, or name one to the broker with --node.");
  }

  #showCallers(callers) {
    const total = callers.reduce((sum, caller) => sum + caller.tokens, 0);
    const withShare = callers.map((caller) => ({ ...caller, share: total ? caller.tokens / total : 0 }));
    withShare.sort((a, b) => b.tokens - a.tokens || b.running - a.running || (a.key < b.key ? -1 : 1));
    reconcile(byId("callers"), this.#callers, withShare, () => new CallerItem());
    setHidden(byId("callers-empty"), callers.length > 0);
  }
}

function serverLine(server, mesh) {
  const parts = [`${server.kind} ${server.name}`, mesh === "default" ? "" : `mesh ${mesh}`, server.policy];
  parts.push(`up ${age(server.uptime_s)}`, many(server.num_clients, "client"), server.version && `v${server.version}`);
  return parts.filter(Boolean).join(" · ");
}
