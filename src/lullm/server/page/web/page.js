// Joins the chat and the engine's view to the stream of events.

import { askKey, call, events } from "/page/wire.js";
import { Chat } from "/page/chat.js";
import { EngineView } from "/page/engine.js";

const at = (id) => document.getElementById(id);
const MOST_PAUSE_MS = 8000;
const engine = new EngineView();
const chat = new Chat((id) => engine.mark(id));

at("key").addEventListener("click", async () => {
  if ((await askKey("api")) && watching === null) watch();
});
for (const view of ["chat", "engine"]) {
  at(`show-${view}`).addEventListener("click", () => show(view));
}

function show(view) {
  document.body.classList.remove("chat", "engine");
  document.body.classList.add(view);
  at("show-chat").setAttribute("aria-pressed", String(view === "chat"));
  at("show-engine").setAttribute("aria-pressed", String(view === "engine"));
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let watching = null;
let model = null; // the chosen one of several; null: the server's first

at("models").addEventListener("change", () => {
  model = at("models").value;
  watching?.abort();
});

/** Several models are a choice, with the state of each. */
function list(models) {
  at("models").hidden = models.length < 2;
  at("model").hidden = !at("models").hidden;
  at("models").replaceChildren(...models.map((name) => new Option(name, name, false, name === chat.model)));
}

function states(found) {
  for (const option of at("models").options) {
    const text = `${option.value} (${(found[option.value] ?? "").replace("_", " ")})`;
    if (option.textContent !== text) option.textContent = text;
  }
}

function status(text) {
  at("state").textContent = text;
  at("state").classList.add("off");
}

/** Follow the stream; a page that is hidden costs the engine nothing. */
async function watch() {
  let pause = 500;
  while (!document.hidden) {
    watching = new AbortController();
    try {
      const query = model === null ? "" : `?model=${encodeURIComponent(model)}`;
      for await (const news of events(await call(`/page/events${query}`, { signal: watching.signal }))) {
        pause = 500;
        if (news.error) throw new Error(news.error.message);
        if (news.about) {
          chat.about(news.about);
          engine.about(news.about);
          list(news.about.models);
        } else {
          engine.take(news);
          states(news.models);
        }
      }
    } catch (error) {
      if (error.name === "AbortError") continue;
      if (error.status === 401) {
        // The dialog was closed: it must not come back by itself.
        status("key needed");
        break;
      }
    }
    status("not connected");
    await sleep(pause);
    pause = Math.min(2 * pause, MOST_PAUSE_MS);
  }
  watching = null;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) watching?.abort();
  else if (watching === null) watch();
});
show("chat");
watch();
at("prompt").focus();
