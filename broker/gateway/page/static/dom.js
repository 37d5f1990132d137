// Elements and their text. Everything shown comes from elsewhere, so nothing here makes markup of a string.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** `make("p", "muted", "text or element", …)`. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Fill a bar, from 0 to 1. A transform: a changed width would cost a layout for every step of its transition. */
export function setFill(element, fraction) {
  element.style.transform = `scaleX(${Math.min(1, Math.max(0, fraction)).toFixed(4)})`;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same in SVG, with attributes in place of children. */
export function makeSvg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Set the text if it differs: an unchanged node costs no layout, and keeps what the reader has selected. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setHidden(element, isHidden) {
  if (element.hidden !== isHidden) element.hidden = isHidden;
}

/**
 * Make the list's items those of `entries`, in their order. Items are kept by key.
 * `create(entry)` returns an object with an `element` and `update(entry)`.
 */
export function reconcile(list, items, entries, create) {
  const seen = new Set();
  let place = list.firstElementChild;
  for (const entry of entries) {
    seen.add(entry.key);
    let item = items.get(entry.key);
    if (item === undefined) {
      item = create(entry);
      items.set(entry.key, item);
    }
    item.update(entry);
    if (item.element === place) place = place.nextElementSibling;
    else list.insertBefore(item.element, place);
  }
  for (const [key, item] of items) {
    if (!seen.has(key)) {
      item.element.remove();
      items.delete(key);
    }
  }
}
