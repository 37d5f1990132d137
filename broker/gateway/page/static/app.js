// Puts the page together: one feed, the mesh on the left, the playground on the right.

import { Playground } from "/page/chat.js";
import { byId, setHidden, setText } from "/page/dom.js";
import { EventList } from "/page/events.js";
import { Feed } from "/page/feed.js";
import { age } from "/page/format.js";
import { askForKey } from "/page/key.js";
import { MeshView } from "/page/mesh.js";

const mesh = new MeshView();
const events = new EventList();
const playground = new Playground();

const feed = new Feed({
  past(lines) {
    events.clear(); // all of them follow
    mesh.past(lines);
  },
  mesh(frame) {
    events.now(frame.now);
    mesh.show(frame);
    if (frame.view) playground.know(frame.view, frame.mesh);
    showState(stateOf(frame));
  },
  events: (list) => events.add(list),
  state(state) {
    byId("mesh").classList.add("stale");
    showState(state);
  },
});

function stateOf({ is_up: isUp, quiet_s: quiet, trouble, view }) {
  if (!isUp) {
    const since = quiet >= 1 ? `for ${age(quiet)}` : "";
    const why = trouble ? ` (${trouble})` : "";
    return { level: "bad", text: "The broker does not answer", detail: `The gateway has heard nothing of the mesh ${since}${why}.` };
  }
  if (!view.nodes.length) return { level: "warn", text: "No node yet" };
  if (!view.server.num_ready) return { level: "bad", text: "No node is ready", detail: "Requests wait until one is." };
  return quiet > 3 ? { level: "warn", text: `Last report ${age(quiet)} ago` } : { level: "good", text: "Live" };
}

function showState({ level, text, detail = "", action = "" }) {
  byId("status").dataset.level = level;
  setText(byId("status-text"), text);
  setText(byId("banner-text"), detail);
  setText(byId("banner-button"), action);
  setHidden(byId("banner-button"), !action);
  byId("banner").dataset.level = level;
  setHidden(byId("banner"), !detail);
}

async function changeKey() {
  if (await askForKey("The key that this page sends with its requests.")) feed.retry();
}

byId("key-button").addEventListener("click", changeKey);
byId("banner-button").addEventListener("click", changeKey);
feed.run();
