// The conversation: what is asked, and answers as they stream in.

import { call, events } from "/page/wire.js";
import { make, markdown } from "/page/markdown.js";
import { TokenView } from "/page/tokens.js";

const IDEAS = ["What is 17 + 25?", "What is the capital of France?", "Tell me a very short story."];
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const at = (id) => document.getElementById(id);

/** One answer on the page. */
class Answer {
  constructor() {
    this.element = make("article", undefined, "turn");
    this.element.setAttribute("aria-label", "Answer");
    this.body = make("div", undefined, "waiting");
    this.element.append(this.body);
    this.content = this.reasoning = "";
    this.calls = [];
    this.tokens = null;
    this.frame = 0;
    this.started = performance.now();
    this.first = null;
    this.usage = null;
    this.reason = null;
  }

  /** Take one chunk of the stream. */
  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning ?? delta.reasoning_content;
    if (reasoning || delta.content || delta.tool_calls) this.first ??= performance.now();
    if (reasoning) this.reasoning += reasoning;
    if (delta.content) this.content += delta.content;
    for (const part of delta.tool_calls ?? []) {
      const known = (this.calls[part.index ?? this.calls.length] ??= { id: "", name: "", arguments: "" });
      known.id ||= part.id ?? "";
      known.name ||= part.function?.name ?? "";
      known.arguments += part.function?.arguments ?? "";
    }
    if (choice.logprobs?.content?.length) (this.tokens ??= new TokenView()).add(choice.logprobs.content);
    if (choice.finish_reason) this.reason = choice.finish_reason;
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  /** A model whose thoughts the server does not split off writes them between tags. */
  split() {
    const match = this.content.match(/^\s*<think>([\s\S]*?)(?:<\/think>([\s\S]*)|$)/);
    if (this.reasoning || !match) return [this.reasoning, this.content];
    return [match[1], match[2] ?? ""];
  }

  draw() {
    this.frame = 0;
    const [reasoning, content] = this.split();
    const wasOpen = this.body.querySelector("details")?.open ?? false;
    const parts = [];
    if (reasoning.trim()) {
      const thinking = make("details", undefined, "thinking");
      thinking.open = wasOpen;
      thinking.append(make("summary", content || this.reason ? "Thought" : "Thinking …"), markdown(reasoning));
      parts.push(thinking);
    }
    parts.push(this.tokens ? this.tokens.element : markdown(content));
    for (const one of this.calls.filter(Boolean)) {
      const box = make("div", undefined, "call");
      box.append(make("strong", `Calls ${one.name}`), make("pre", one.arguments));
      parts.push(box);
    }
    this.body.replaceChildren(...parts);
  }

  end(failure) {
    cancelAnimationFrame(this.frame);
    this.draw();
    this.body.classList.remove("waiting");
    const foot = make("div", undefined, "foot");
    if (failure) foot.append(make("span", failure, "failed"));
    const num = this.usage?.completion_tokens;
    const seconds = (performance.now() - (this.first ?? this.started)) / 1000;
    const facts = [];
    if (num) facts.push(`${num} tokens`);
    if (num > 1 && seconds > 0) facts.push(`${Math.round((num - 1) / seconds)} tokens/s`);
    if (this.first) facts.push(`first after ${Math.round(this.first - this.started)} ms`);
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (cached) facts.push(`${cached} of ${this.usage.prompt_tokens} prompt tokens cached`);
    if (this.reason && this.reason !== "stop") facts.push(`ended: ${this.reason}`);
    foot.append(make("span", facts.join(" · ")));
    if (this.content) {
      const copy = make("button", "Copy", "plain");
      copy.type = "button";
      copy.addEventListener("click", () => navigator.clipboard?.writeText(this.split()[1].trim()));
      foot.append(copy);
    }
    this.element.append(foot);
  }

  /** As a message of the conversation; the server wants no content beside calls. */
  message() {
    const calls = this.calls.filter(Boolean);
    if (!calls.length) return { role: "assistant", content: this.split()[1] };
    return {
      role: "assistant",
      content: this.content || null,
      tool_calls: calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })),
    };
  }
}

export class Chat {
  /** `onAsk`: hears the id of each request that is sent. */
  constructor(onAsk) {
    this.messages = [];
    this.model = null;
    this.sampling = {};
    this.controller = null;
    this.onAsk = onAsk;
    at("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(at("prompt").value);
    });
    at("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.ask(at("prompt").value);
      }
    });
    at("prompt").addEventListener("input", grow);
    at("stop").addEventListener("click", () => this.stop());
    at("new").addEventListener("click", () => this.clear());
    at("again").addEventListener("click", () => this.again());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
    for (const idea of IDEAS) {
      const button = make("button", idea);
      button.type = "button";
      button.addEventListener("click", () => this.ask(idea));
      at("ideas").append(button);
    }
  }

  /** What the server says of itself once; settings that are left empty show what is sent for them. */
  about({ model, sampling }) {
    Object.assign(this, { model, sampling });
    for (const name of NUMBERS) if (name in sampling) at(name).placeholder = sampling[name];
  }

  stop() {
    this.controller?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    at("log").replaceChildren(at("welcome"));
    at("welcome").hidden = false;
    at("again").hidden = true;
    at("prompt").focus();
  }

  async ask(text) {
    if (!text.trim() || this.controller) return;
    at("prompt").value = "";
    grow();
    at("welcome").hidden = true;
    this.messages.push({ role: "user", content: text });
    const turn = make("div", text, "turn user");
    turn.setAttribute("aria-label", "You");
    at("log").append(turn);
    await this.answer();
  }

  async again() {
    if (this.controller || this.messages.at(-1)?.role === undefined) return;
    while (this.messages.length && this.messages.at(-1).role !== "user") this.messages.pop();
    const turns = [...at("log").querySelectorAll(".turn")];
    while (turns.length && !turns.at(-1).classList.contains("user")) turns.pop().remove();
    if (this.messages.length) await this.answer();
  }

  /** Stream the answer to the conversation so far. */
  async answer() {
    const answer = new Answer();
    const id = Array.from(crypto.getRandomValues(new Uint8Array(3)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    at("log").append(answer.element);
    this.busy(new AbortController());
    this.onAsk(id);
    let failure = null;
    try {
      const body = this.body();
      const options = { body, signal: this.controller.signal, headers: { "X-Request-Id": id } };
      for await (const chunk of events(await call("/v1/chat/completions", options))) {
        const isAtEnd = at("log").scrollHeight - at("log").scrollTop - at("log").clientHeight < 60;
        answer.take(chunk);
        if (isAtEnd) at("log").scrollTop = at("log").scrollHeight;
      }
    } catch (error) {
      failure = error.name === "AbortError" ? "stopped" : error.message;
    }
    answer.end(failure);
    if (answer.content || answer.calls.length) this.messages.push(answer.message());
    this.busy(null);
    this.askResults(answer.calls.filter(Boolean));
    at("log").scrollTop = at("log").scrollHeight;
  }

  /** A field per tool call for its result; once all are given the conversation goes on. */
  askResults(calls) {
    if (!calls.length) return;
    const form = make("form", undefined, "turn call");
    const inputs = calls.map((one) => {
      const label = make("label", `Result of ${one.name}`);
      const input = make("input");
      label.append(input);
      form.append(label);
      return input;
    });
    const send = make("button", "Send results", "accent");
    const row = make("div", undefined, "row");
    row.append(send);
    form.append(row);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.controller) return;
      send.disabled = true;
      calls.forEach((one, index) => {
        this.messages.push({ role: "tool", tool_call_id: one.id, content: inputs[index].value });
      });
      this.answer();
    });
    at("log").append(form);
    inputs[0].focus();
  }

  body() {
    const system = at("system").value.trim();
    const messages = system ? [{ role: "system", content: system }, ...this.messages] : this.messages;
    const body = { ...this.sampling, model: this.model, messages, stream: true, stream_options: { include_usage: true } };
    for (const name of NUMBERS) if (at(name).value !== "") body[name] = Number(at(name).value);
    if (at("top_logprobs").value !== "") {
      body.logprobs = true;
      body.top_logprobs = Number(at("top_logprobs").value);
    }
    if (at("thinking").value) body.chat_template_kwargs = { enable_thinking: at("thinking").value === "on" };
    if (at("tools").value.trim()) {
      try {
        body.tools = JSON.parse(at("tools").value);
      } catch (error) {
        throw new Error(`the tools are not JSON: ${error.message}`);
      }
    }
    return body;
  }

  busy(controller) {
    this.controller = controller;
    at("send").hidden = controller !== null;
    at("stop").hidden = controller === null;
    at("again").hidden = controller !== null;
    if (controller === null) at("prompt").focus();
  }
}

function grow() {
  const prompt = at("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}
