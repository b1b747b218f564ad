// The engine's side: numbers, blocks, plots, requests, and sleep.

import { call } from "/page/wire.js";
import { make } from "/page/markdown.js";
import { BlockMap, forgetHues, ownerColour } from "/page/map.js";
import { Plot } from "/page/plot.js";

const at = (id) => document.getElementById(id);
const STATES = {
  awake: "awake", paused: "paused", weights_offloaded: "asleep, level 1", discard_all: "asleep, level 2", partial: "partly asleep",
};
const MOST_ROWS = 40;

export function bytes(num) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; Math.abs(num) >= 1024 && unit < 4; unit++) num /= 1024;
  return `${num.toFixed(num < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

const duration = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`);
const milliseconds = (s) => (s < 0.01 ? (1000 * s).toFixed(1) : String(Math.round(1000 * s)));

export class EngineView {
  constructor() {
    const say = (text) => (at("map-note").textContent = text);
    this.map = new BlockMap(at("map"), "KV blocks", say);
    this.host = new BlockMap(at("host-map"), "Host blocks", say);
    this.throughput = new Plot(at("throughput"), "tokens/s");
    this.latency = new Plot(at("latency"), "ms");
    this.recent = [];
    this.own = new Set();
    at("sleep-now-button").addEventListener("click", () => this.sleep());
    at("wake").addEventListener("click", () => this.wake());
    at("forecast").addEventListener("click", () => this.forecast());
    const redraw = () => [this.map, this.host, this.throughput, this.latency].forEach((each) => each.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new ResizeObserver(redraw).observe(at("engine"));
  }

  about(facts) {
    at("model").textContent = this.model = facts.model;
    this.isOne = facts.models.length < 2;
    document.title = `${facts.model} – lullm`;
    at("sleep").hidden = !facts.has_sleep_mode;
    at("no-sleep").hidden = facts.has_sleep_mode;
    // Counters of another process are not comparable.
    this.recent = [];
  }

  /** Take a snapshot of the stream. */
  take(facts) {
    const { stats, sleep } = facts;
    this.rates(facts);
    at("running").textContent = stats.num_running;
    at("waiting").textContent = stats.num_waiting;
    at("swapped").textContent = stats.num_swapped;
    at("usage").textContent = stats.num_blocks ? `${((100 * stats.num_used_blocks) / stats.num_blocks).toFixed(1)} %` : "–";
    const queries = stats.prefix_cache_queries_total;
    at("hits").textContent = queries ? `${Math.round((100 * stats.prefix_cache_hits_total) / queries)} %` : "–";
    at("preempted").textContent = stats.preemptions_total;
    at("state").textContent = facts.is_draining ? "shutting down" : STATES[sleep.state];
    at("state").classList.toggle("off", sleep.state !== "awake");
    this.sleepLine(sleep);
    if (facts.device) this.picture(facts);
  }

  /** Numbers per second over the last two seconds. */
  rates(facts) {
    this.recent.push(facts);
    while (this.recent.length > 2 && this.recent[0].time_s < facts.time_s - 2.2) this.recent.shift();
    const [first, last] = [this.recent[0], facts];
    const before = this.recent.at(-2) ?? facts;
    const span = last.time_s - first.time_s;
    if (span <= 0) return;
    const per = (name) => (last.stats[name] - first.stats[name]) / span;
    const rate = per("generation_tokens_total"), prompts = per("prompt_tokens_total"), steps = per("steps_total");
    at("rate").textContent = Math.round(rate);
    at("throughput-now").textContent = `${Math.round(rate)} generated, ${Math.round(prompts)} of prompts per second`;
    this.throughput.add(last.time_s, rate);
    const isBusy = steps > 0 && last.stats.num_running > 0;
    const firsts = last.latency.num_first_tokens - before.latency.num_first_tokens;
    const first_s = firsts ? (last.latency.first_token_s - before.latency.first_token_s) / firsts : null;
    this.latency.add(last.time_s, isBusy ? 1000 / steps : null, first_s === null ? null : 1000 * first_s);
    const num = last.latency.num_first_tokens;
    const mean = num ? `first token ${milliseconds(last.latency.first_token_s / num)} ms on average (dots)` : "";
    at("latency-now").textContent = (isBusy ? [`${milliseconds(1 / steps)} ms per step`, mean] : [mean]).filter(Boolean).join(", ");
    at("throughput").setAttribute("aria-label", `Throughput: ${at("throughput-now").textContent}`);
    at("latency").setAttribute("aria-label", `Latency: ${at("latency-now").textContent || "no requests yet"}`);
  }

  picture(facts) {
    const names = facts.requests.map((request) => request.request_id);
    forgetHues(new Set(names));
    at("memory").textContent = bytes(facts.resident_bytes);
    at("map-size").textContent =
      `${facts.device.num_blocks} of ${facts.block_size} tokens` +
      (facts.device.blocks_per_cell > 1 ? `, ${facts.device.blocks_per_cell} per cell` : "");
    this.map.take(facts.device, names);
    at("host").hidden = facts.host.cells === "";
    if (!at("host").hidden) {
      at("host-size").textContent = `${facts.host.num_blocks} blocks`;
      this.host.take(facts.host, names);
    }
    this.list(facts.requests);
  }

  list(requests) {
    at("num-requests").textContent = requests.length > MOST_ROWS ? `the first ${MOST_ROWS}` : requests.length || "none";
    const rows = requests.slice(0, MOST_ROWS).map((request) => {
      const row = make("tr");
      const cell = make("i", undefined, "cell");
      if (request.queue !== "waiting") cell.style.background = ownerColour(request.request_id);
      const name = make("td");
      name.append(cell, request.request_id);
      if (this.own.has(request.request_id.split("-")[0])) {
        row.className = "own";
        name.append(" (this chat)");
      }
      const numbers = [request.queue, request.prompt_len, request.output_len, request.num_blocks];
      row.append(name, ...numbers.map((value) => make("td", value)));
      return row;
    });
    at("requests").replaceChildren(...rows);
  }

  /** A request of this page was sent under this id. */
  mark(id) {
    this.own.add(id);
  }

  // -- sleep ------------------------------------------------------------------------------------------------------

  sleepLine(sleep) {
    const parts = [STATES[sleep.state]];
    if (sleep.tags.length) parts.push(`${sleep.tags.join(" and ").replace("kv_cache", "KV cache")} released`);
    if (sleep.idle_s >= 1) parts.push(`idle for ${duration(sleep.idle_s)}`);
    if (sleep.next) parts.push(`level ${sleep.next.level} in ${duration(sleep.next.in_s)}`);
    at("sleep-now").textContent = parts.join(", ");
    at("wake").disabled = sleep.state === "awake";
  }

  wishes() {
    const tags = at("tags").value;
    return { level: Number(at("level").value), backup: at("backup").value, ...(tags ? { tags: [tags] } : {}), ...this.which() };
  }

  /** Which model, where there are several. */
  which() {
    return this.isOne ? {} : { model: this.model };
  }

  async admin(button, path, body) {
    button.disabled = true;
    at("sleep-note").textContent = "…";
    try {
      return await (await call(path, { body, kind: "admin" })).json();
    } catch (error) {
      at("sleep-note").textContent = error.message;
      return null;
    } finally {
      button.disabled = false;
    }
  }

  async sleep() {
    const report = await this.admin(at("sleep-now-button"), "/sleep", { ...this.wishes(), mode: at("mode").value });
    if (report === null) return;
    at("sleep-note").textContent =
      `${report.level === 0 ? "Paused" : `Released ${bytes(report.freed_bytes)}`} in ${report.seconds.toFixed(2)} s; ` +
      `${bytes(report.backed_up_bytes)} backed up.`;
  }

  async wake() {
    const report = await this.admin(at("wake"), "/wake_up", this.which());
    if (report === null) return;
    at("sleep-note").textContent = `Awake after ${report.seconds.toFixed(2)} s; ${bytes(report.restored_bytes)} put back.`;
  }

  async forecast() {
    const { tags, ...rest } = this.wishes();
    const query = new URLSearchParams(rest);
    for (const tag of tags ?? []) query.append("tags", tag);
    const found = await this.admin(at("forecast"), `/sleep/explain?${query}`);
    if (found === null) return;
    at("sleep-note").textContent =
      `Would free ${bytes(found.frees_bytes)} and back up ${bytes(found.backs_up_bytes)}; ` +
      `waking would take about ${found.wake_seconds.toFixed(2)} s.`;
  }
}
