// Numbers as a person reads them in a narrow column; the same as in `phi3-broker status`.

const GIB = 2 ** 30;

/** 950, 1.2k, 35k. */
export function number(value) {
  if (value < 1000) return value.toFixed(0);
  return value < 10_000 ? `${(value / 1000).toFixed(1)}k` : `${(value / 1000).toFixed(0)}k`;
}

/** 12 ms, 1.4 s, 2m. */
export function latency(seconds) {
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  return seconds < 120 ? `${seconds.toFixed(1)} s` : age(seconds);
}

/** 45s, 12m, 3h 5m, 2d 7h. */
export function age(seconds) {
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)}h ${Math.floor((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86_400)}d ${Math.floor((whole % 86_400) / 3600)}h`;
}

/** 20/80 GiB. */
export function bytesOf(used, total) {
  if (!total) return used ? `${(used / GIB).toFixed(1)} GiB` : "";
  const digits = total >= 10 * GIB ? 0 : 1;
  return `${(used / GIB).toFixed(digits)}/${(total / GIB).toFixed(digits)} GiB`;
}

/** 87 %. */
export const percent = (fraction) => `${Math.round(fraction * 100)} %`;

/** "1 node", "2 nodes". */
export const many = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** 14:03:59, on the reader's clock. */
export const clock = (milliseconds) => CLOCK.format(new Date(milliseconds));
