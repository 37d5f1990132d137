// One node: its state, its slots, two lines, its devices.

import { Chart } from "/page/chart.js";
import { make, setFill, setHidden, setText } from "/page/dom.js";
import { bytesOf, latency, number, percent } from "/page/format.js";

const MAX_CELLS = 64; // with more slots than that, one bar
const CELLS_IN_ROW = 32;
const STATES = ["ready", "busy", "joining", "suspect", "stalled", "draining", "lost"];

/** Slots that fill and empty. */
class Slots {
  #cells = [];
  #numSlots = -1;
  #row = make("div", "cells");
  #fill = make("div", "fill");
  #bar = make("div", "bar slots-bar", this.#fill);

  constructor() {
    this.text = make("span", "slots-text");
    this.element = make("div", "slots", this.#row, this.#bar, this.text);
    for (const each of [this.#row, this.#bar]) each.setAttribute("aria-hidden", "true"); // the text says it
  }

  update(running, numSlots, queued) {
    if (numSlots !== this.#numSlots) this.#lay(numSlots);
    const filled = Math.min(running, numSlots);
    this.#cells.forEach((cell, index) => cell.classList.toggle("on", index < filled));
    setFill(this.#fill, numSlots ? filled / numSlots : 0);
    setText(this.text, numSlots ? `${running}/${numSlots} slots${queued ? `, ${queued} queued` : ""}` : "");
  }

  #lay(numSlots) {
    this.#numSlots = numSlots;
    const isBar = numSlots > MAX_CELLS;
    this.#cells = isBar ? [] : Array.from({ length: numSlots }, () => make("i", "cell"));
    this.#row.replaceChildren(...this.#cells);
    this.#row.style.gridTemplateColumns = `repeat(${Math.min(numSlots, CELLS_IN_ROW) || 1}, minmax(0, 11px))`;
    setHidden(this.#row, isBar || !numSlots);
    setHidden(this.#bar, !isBar);
  }
}

/** A number with its line. */
class Figure {
  constructor(title, floor, show) {
    this.show = show;
    this.chart = new Chart(floor);
    this.value = make("span", "value", "–");
    this.element = make("div", "figure", make("span", "figure-title", title), this.value, this.chart.element);
  }

  update(value) {
    setText(this.value, value > 0 ? this.show(value) : "–");
  }
}

/** A labelled bar, such as "util 87 %". */
class Gauge {
  constructor(title) {
    this.fill = make("span", "fill");
    this.value = make("span", "gauge-value");
    const bar = make("span", "bar", this.fill);
    bar.setAttribute("aria-hidden", "true");
    this.element = make("span", "gauge", make("span", "muted", title), bar, this.value);
  }

  update(fraction, text) {
    setFill(this.fill, fraction);
    setText(this.value, text);
  }
}

/** One GPU, or the CPU. */
class Device {
  constructor() {
    this.name = make("span", "device-name");
    this.util = new Gauge("util");
    this.memory = new Gauge("mem");
    this.rest = make("span", "muted device-rest");
    this.element = make("li", "device", this.name, this.util.element, this.memory.element, this.rest);
  }

  update(device) {
    setText(this.name, device.name);
    this.name.title = device.name;
    this.util.update(device.utilisation, percent(device.utilisation));
    setHidden(this.memory.element, !device.memory_used && !device.memory_total);
    const used = device.memory_total ? device.memory_used / device.memory_total : 0;
    this.memory.update(used, bytesOf(device.memory_used, device.memory_total));
    const rest = [device.temperature_c && `${device.temperature_c.toFixed(0)} °C`, device.power_w && `${device.power_w.toFixed(0)} W`];
    setText(this.rest, rest.filter(Boolean).join(" · "));
  }
}

export class NodeItem {
  #slots = new Slots();
  #rate = new Figure("tokens/s", 10, number);
  #ttft = new Figure("first token", 0.05, latency);
  #devices = [];

  constructor() {
    this.name = make("h3", "node-name");
    this.state = make("span", "state-word");
    const dot = make("span", "dot");
    dot.setAttribute("aria-hidden", "true");
    this.what = make("p", "node-what muted");
    this.note = make("p", "node-note");
    this.deviceList = make("ul", "devices");
    const badge = make("span", "state", dot, this.state);
    const head = make("div", "node-head", make("div", "node-title", this.name, badge), this.what);
    this.element = make("li", "node", head, this.#slots.element, this.#rate.element, this.#ttft.element, this.deviceList, this.note);
  }

  /** The lines so far. */
  fill(lines) {
    this.#rate.chart.fill(lines.tokens_per_s ?? []);
    this.#ttft.chart.fill(lines.ttft_s ?? []);
  }

  /** One more sample. */
  push(node) {
    this.#rate.chart.push(node.slots ? node.tokens_per_s : null);
    this.#ttft.chart.push(node.slots ? node.ttft_s : null);
  }

  /** The mesh did not answer: a gap. */
  miss() {
    this.#rate.chart.push(null);
    this.#ttft.chart.push(null);
  }

  update(node) {
    setText(this.name, node.name);
    this.name.title = node.address;
    setText(this.state, node.state);
    this.element.dataset.state = STATES.includes(node.state) ? node.state : "joining";
    const model = node.models.map((name) => name.split("/").pop()).join(", ");
    const device = node.devices.length ? "" : node.device;
    const engine = node.engine && node.dtype && node.dtype !== "none" ? `${node.engine} ${node.dtype}` : node.engine;
    const what = [node.kind === "node" ? "" : node.kind, model, engine, device];
    setText(this.what, what.filter(Boolean).join(" · ") || (node.address === node.name ? "" : node.address));
    setText(this.note, node.note);
    setHidden(this.note, !node.note);
    this.#slots.update(node.running, node.slots, node.queued);
    this.#rate.update(node.tokens_per_s);
    this.#ttft.update(node.ttft_s);
    for (const each of [this.#slots, this.#rate, this.#ttft]) setHidden(each.element, !node.slots);
    this.#showDevices(node.devices);
  }

  #showDevices(devices) {
    while (this.#devices.length < devices.length) {
      const device = new Device();
      this.#devices.push(device);
      this.deviceList.append(device.element);
    }
    while (this.#devices.length > devices.length) this.#devices.pop().element.remove();
    devices.forEach((device, index) => this.#devices[index].update(device));
    setHidden(this.deviceList, !devices.length);
  }
}
