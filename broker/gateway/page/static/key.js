// The API key: asked for when the gateway wants one, kept in this tab only.

import { byId, setHidden, setText } from "/page/dom.js";

const WHERE = "phi3-key";

let key = read();
let asking = null;

function read() {
  try {
    return sessionStorage.getItem(WHERE) ?? "";
  } catch {
    return "";
  }
}

function keep(value) {
  key = value;
  try {
    sessionStorage.setItem(WHERE, value);
  } catch {
    // Storage is closed to this page: it is kept until the page is left.
  }
}

/** Headers for a request, with the key if there is one. */
export function withKey(headers = {}) {
  return key ? { ...headers, authorization: `Bearer ${key}` } : headers;
}

export const hasKey = () => key !== "";

/** Ask for a key, saying why. True once there is one, false when the reader declines. Asked once for all who ask. */
export function askForKey(message) {
  asking ??= ask(message).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(message) {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  setText(byId("key-message"), message);
  setHidden(byId("key-button"), false);
  input.value = "";
  return new Promise((resolve) => {
    const onSubmit = (event) => {
      event.preventDefault();
      keep(input.value.trim());
      dialog.close("given");
    };
    const onCancel = () => dialog.close("");
    const onClose = () => {
      byId("key-form").removeEventListener("submit", onSubmit);
      byId("key-cancel").removeEventListener("click", onCancel);
      const isGiven = dialog.returnValue === "given";
      dialog.returnValue = "";
      resolve(isGiven);
    };
    byId("key-form").addEventListener("submit", onSubmit);
    byId("key-cancel").addEventListener("click", onCancel);
    dialog.addEventListener("close", onClose, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
    input.focus();
  });
}
