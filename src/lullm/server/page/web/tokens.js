// An answer token by token: how likely each was, and what else could have stood there.

import { make } from "/page/markdown.js";

const shown = (text) => (text === "" ? "∅" : text.replaceAll("\n", "⏎").replaceAll(" ", "␣"));
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(logprob > -0.01 ? 0 : 1)} %`;

function alternatives(entry) {
  const box = make("div", undefined, "alternatives");
  const table = make("table");
  const body = table.createTBody();
  const rows = entry.top_logprobs.slice();
  if (!rows.some((row) => row.token === entry.token)) rows.push(entry);
  for (const row of rows) {
    const line = body.insertRow();
    if (row.token === entry.token) line.className = "chosen";
    line.insertCell().append(make("code", shown(row.token)));
    const meter = make("meter");
    meter.value = Math.exp(row.logprob);
    meter.setAttribute("aria-label", `probability of ${shown(row.token)}`);
    line.insertCell().append(meter);
    line.insertCell().textContent = percent(row.logprob);
  }
  box.append(table);
  return box;
}

/** `entries`: OpenAI's records of a chat's log-probabilities. Adds those that are not there yet. */
export class TokenView {
  constructor() {
    this.element = make("div");
    this.text = make("div", undefined, "tokens");
    this.element.append(this.text);
    this.open = null;
  }

  add(entries) {
    for (const entry of entries) {
      const p = Math.exp(entry.logprob);
      // Underlined the more, the less likely the token was.
      const button = make("button", entry.token, p > 0.9 ? "" : p > 0.5 ? "p1" : p > 0.15 ? "p2" : "p3");
      button.type = "button";
      button.title = percent(entry.logprob);
      button.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-label", `${shown(entry.token)}, ${percent(entry.logprob)}`);
      button.addEventListener("click", () => this.toggle(button, entry));
      this.text.append(button);
    }
  }

  toggle(button, entry) {
    const again = this.open?.button === button;
    this.open?.button.setAttribute("aria-expanded", "false");
    this.open?.box.remove();
    this.open = null;
    if (again) return;
    const box = alternatives(entry);
    button.setAttribute("aria-expanded", "true");
    this.element.append(box);
    this.open = { button, box };
  }
}
