// One message on screen. It is made once and then changed in place, so that what is above and below does not move; its
// row of buttons is always there, and hidden while an answer is being made.

import { button, copyButton, element, size } from "./dom.js";
import { Growing } from "./markdown.js";

const FINISHES = { length: "Cut at the token limit.", stopped: "Stopped.", content_filter: "Ended by the server." };

export class DrawnMessage {
  #on;
  #message;
  #state;
  #body = element("div", "body");
  #text;
  #details;
  #phase;

  /** `on`: onEdit, onRegenerate, onContinue, onRemove, onChoose. */
  constructor(message, on) {
    this.#on = on;
    this.#message = message;
    this.element = element("article", `message ${message.role}`);
    this.element.id = `m-${message.id}`;
    this.#text = message.role === "user" ? undefined : new Growing(this.#body);
    if (message.role === "user") this.element.setAttribute("aria-label", "You");
  }

  /** `state`: { isLast, isGrowing, versions }. */
  draw(state) {
    this.#state = state;
    if (this.#message.role === "user") this.#drawUser();
    else this.#drawAnswer();
  }

  /** More of the answer has come. */
  grow() {
    const { reasoning, content } = this.#message;
    this.#drawReasoning(reasoning, Boolean(content));
    this.#text.set(content);
    this.#drawCaret();
  }

  /** What is waited for: { text, seconds, share }, the share from 0 to 1 where it is known; nothing once the answer grows. */
  setPhase(phase) {
    if (!phase) {
      this.#phase?.remove();
      this.#phase = undefined;
      return;
    }
    if (!this.#phase) {
      const bar = element("progress");
      bar.setAttribute("aria-label", "Waiting for the answer");
      this.#phase = element("div", "phase", bar, element("span"));
      this.#body.before(this.#phase);
    }
    const bar = this.#phase.firstChild;
    if (phase.share === undefined) bar.removeAttribute("value");
    else bar.value = phase.share;
    const share = phase.share === undefined ? "" : ` · ${Math.floor(100 * phase.share)} %`;
    const seconds = phase.seconds < 1 ? "" : ` · ${Math.floor(phase.seconds)} s`;
    this.#phase.lastChild.textContent = phase.text + share + seconds;
  }

  #drawUser() {
    const { content, files } = this.#message;
    this.#body.textContent = content;
    const chips = (files ?? []).map((file) => element("span", "file-chip", `${file.name} · ${size(file.text.length)}`));
    const tools = element(
      "div",
      "tools",
      button("Edit", () => this.edit()),
      copyButton(() => content),
      ...this.#shared(),
    );
    this.element.replaceChildren(...chips, ...(content ? [this.#body] : []), tools);
  }

  #drawAnswer() {
    const message = this.#message;
    this.element.setAttribute("aria-label", message.model ? `Answer of ${message.model}` : "Answer");
    if (this.#body.parentElement !== this.element) this.element.replaceChildren(this.#body);
    for (const old of this.element.querySelectorAll(":scope > .tools, :scope > .failed")) old.remove();
    this.grow();
    if (!this.#state.isGrowing) this.setPhase();
    if (message.error) this.element.append(element("div", "failed", message.error));
    this.element.append(this.#answerTools());
  }

  #answerTools() {
    const { content, error, finish, model, speed, usage } = this.#message;
    const tools = element("div", "tools");
    if (content) tools.append(copyButton(() => this.#message.content));
    if (this.#state.isLast) {
      const isPart = content && (error || finish === "length" || finish === "stopped");
      if (isPart) tools.append(button("Continue", () => this.#on.onContinue(this.#message)));
      tools.append(button(error ? "Try again" : "Regenerate", () => this.#on.onRegenerate(this.#message)));
    }
    tools.append(...this.#shared());
    const figures = speed ? `${usage?.completion_tokens ?? "?"} tokens, ${speed.toFixed(1)}/s` : "";
    const facts = [FINISHES[finish], model].filter(Boolean).join(" · ");
    tools.append(element("span", "note", facts, element("span", "figures", facts && figures && " · ", figures)));
    return tools;
  }

  /** Arrows between versions, and delete. */
  #shared() {
    const { versions } = this.#state;
    const tools = [button("Delete", () => this.#on.onRemove(this.#message))];
    if (versions.length > 1) {
      const at = versions.indexOf(this.#message);
      const step = (label, text, to) => {
        const made = button(label, () => this.#on.onChoose(versions[to]), text);
        made.disabled = !versions[to];
        return made;
      };
      const count = element("span", "count", `${at + 1}/${versions.length}`);
      count.setAttribute("aria-label", `Version ${at + 1} of ${versions.length}`);
      count.setAttribute("role", "img");
      tools.unshift(element("span", "versions", step("Previous version", "‹", at - 1), count, step("Next version", "›", at + 1)));
    }
    return tools;
  }

  #drawReasoning(reasoning, hasAnswer) {
    if (!reasoning) {
      this.#details?.remove();
      this.#details = undefined;
      return;
    }
    const isThinking = this.#state.isGrowing && !hasAnswer;
    if (!this.#details) {
      this.#details = element("details", "", element("summary"), element("div", "thought"));
      this.#details.open = isThinking;
      this.#body.before(this.#details);
    }
    const [summary, thought] = this.#details.children;
    // Closed once, when the answer begins; what the reader opens stays open.
    if (!isThinking && summary.textContent === "Thinking ...") this.#details.open = false;
    summary.textContent = isThinking ? "Thinking ..." : "Thoughts";
    thought.textContent = reasoning;
  }

  /** The caret stands behind the last text. */
  #drawCaret() {
    for (const old of this.element.querySelectorAll(".busy")) old.classList.remove("busy");
    if (!this.#state.isGrowing || !this.#message.content) return;
    let last = this.#body;
    while (last.lastElementChild && !last.lastElementChild.matches("a, code, .code, .table, .math, strong, em, del"))
      last = last.lastElementChild;
    last.classList.add("busy");
  }

  edit() {
    const box = element("textarea");
    box.value = this.#message.content;
    box.setAttribute("aria-label", "Edit your message");
    const done = () => this.draw(this.#state);
    const send = () => {
      if (box.value.trim()) this.#on.onEdit(this.#message, box.value);
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        done();
      }
    });
    const save = button("Send", send);
    save.className = "primary";
    this.element.replaceChildren(element("div", "editor", box, element("div", "actions", button("Cancel", done), save)));
    box.focus();
  }
}
