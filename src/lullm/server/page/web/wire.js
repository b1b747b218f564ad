// Calls of the server, with the keys of this tab. Keys live in this module's memory and nowhere else.

const keys = { api: "", admin: "" };
const TITLES = { api: "API key", admin: "Admin key" };
let asking = null;

/** Ask for a key; whether one was given. Calls at the same time share one dialog. */
export function askKey(kind) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const input = document.getElementById("key-value");
    document.getElementById("key-title").textContent = TITLES[kind];
    input.value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      const given = dialog.returnValue === "ok" && input.value.trim() !== "";
      if (given) keys[kind] = input.value.trim();
      input.value = "";
      resolve(given);
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** `fetch` with the key; a 401 asks for one and tries again. Throws an Error with the server's own message. */
export async function call(path, { body, kind = "api", signal, headers = {} } = {}) {
  for (;;) {
    const key = keys[kind] || keys.api;
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: {
        ...headers,
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(key ? { Authorization: `Bearer ${key}` } : {}),
      },
      signal,
      cache: "no-store",
      credentials: "omit",
    });
    if (response.ok) return response;
    if (response.status === 401 && (await askKey(kind))) continue;
    const text = await response.text();
    let message = `${response.status} ${response.statusText}`;
    try {
      message = JSON.parse(text).error.message;
    } catch {
      // no envelope: a proxy's answer
    }
    throw Object.assign(new Error(message), { status: response.status });
  }
}

/** The JSON of each server-sent event; comments and [DONE] are left out. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        for (const line of part.split("\n")) {
          if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
