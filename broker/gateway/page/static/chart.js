// A small moving line: the last two minutes, newest at the right.

import { makeSvg } from "/page/dom.js";

const NUM_SAMPLES = 120;
const WIDTH = NUM_SAMPLES - 1;
const HEIGHT = 30;

/** One line. `floor` is the least that the top of the chart stands for, so that noise around zero stays flat. */
export class Chart {
  #values = [];
  #floor;
  #line = makeSvg("path", { class: "line" });
  #area = makeSvg("path", { class: "area" });

  constructor(floor) {
    this.#floor = floor;
    this.element = makeSvg("svg", {
      class: "chart",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true", // the number beside it says it in words
    });
    this.element.append(this.#area, this.#line);
  }

  /** What was before this page was open. */
  fill(values) {
    this.#values = values.slice(-NUM_SAMPLES);
    this.#draw();
  }

  /** One more sample; null where there is none. */
  push(value) {
    this.#values.push(value);
    if (this.#values.length > NUM_SAMPLES) this.#values.shift();
    this.#draw();
  }

  /** The highest value that is shown. */
  get peak() {
    return Math.max(0, ...this.#values.filter((value) => value !== null));
  }

  #draw() {
    const top = Math.max(this.#floor, this.peak) * 1.08;
    const first = NUM_SAMPLES - this.#values.length;
    let line = "";
    let area = "";
    let begin = null;
    let x = 0;
    this.#values.forEach((value, index) => {
      if (value === null) {
        if (begin !== null) area += `L${x} ${HEIGHT}L${begin} ${HEIGHT}Z`;
        begin = null;
        return;
      }
      x = first + index;
      const point = `${x} ${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(2)}`;
      line += (begin === null ? "M" : "L") + point;
      area += (begin === null ? `M${x} ${HEIGHT}L` : "L") + point;
      if (begin === null) begin = x;
    });
    if (begin !== null) area += `L${x} ${HEIGHT}L${begin} ${HEIGHT}Z`;
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", area);
  }
}
