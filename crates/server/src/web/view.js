// Draws one conversation. A streaming answer is drawn at most once a frame, and the view follows it only while the
// reader is at the end.

import { render } from "./markdown.js";

const STARTERS = ["Why is the sky blue?", "Explain a mutex to a child", "Write a haiku about the sea"];
const FINISHES = { length: "Cut at the token limit.", stopped: "Stopped.", content_filter: "Ended by the server." };

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function button(label, action) {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

export class View {
  #log;
  #on;
  #drawn = []; // one element per message
  #conversation;
  #frame;

  constructor(log, on) {
    this.#log = log;
    this.#on = on;
  }

  show(conversation, isRunning) {
    this.#conversation = conversation;
    this.#drawn = conversation.messages.map((message, index) => this.#draw(message, index, isRunning));
    this.#log.replaceChildren(...(this.#drawn.length ? this.#drawn : [this.#empty()]));
    this.scrollToEnd();
  }

  /** Draws a message that grew, on the next frame. */
  update(message) {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = undefined;
      this.#redraw(message, true);
    });
  }

  finish(message) {
    if (this.#frame) cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    this.#redraw(message, false);
    const top = this.#isAtEnd() ? undefined : this.#log.scrollTop;
    // The buttons of earlier messages come back.
    this.show(this.#conversation, false);
    // A reader who looks at something else is left there.
    if (top !== undefined) this.#log.scrollTop = top;
  }

  scrollToEnd() {
    this.#log.scrollTop = this.#log.scrollHeight;
  }

  onScroll(action) {
    this.#log.addEventListener("scroll", () => action(this.#isAtEnd()));
  }

  editLast() {
    const index = this.#conversation.messages.findLastIndex((m) => m.role === "user");
    if (index >= 0) this.#edit(index);
  }

  #isAtEnd() {
    return this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < 60;
  }

  #redraw(message, isRunning) {
    const index = this.#conversation.messages.indexOf(message);
    if (index < 0) return;
    const follow = this.#isAtEnd();
    const isOpen = this.#drawn[index].querySelector("details")?.open;
    const made = this.#draw(message, index, isRunning);
    const details = made.querySelector("details");
    if (details && isOpen !== undefined) details.open = isOpen;
    this.#drawn[index].replaceWith(made);
    this.#drawn[index] = made;
    if (follow) this.scrollToEnd();
  }

  #empty() {
    const starters = element("div", "starters", ...STARTERS.map((text) => button(text, () => this.#on.onStarter(text))));
    return element("div", "empty", element("h2", "", "What shall we talk about?"), "The model runs on this server and nowhere else.", starters);
  }

  #draw(message, index, isRunning) {
    return message.role === "user" ? this.#user(message, index, isRunning) : this.#answer(message, index, isRunning);
  }

  #user(message, index, isRunning) {
    const chips = (message.files ?? []).map((file) => element("span", "file-chip", `${file.name} · ${size(file.text.length)}`));
    const body = element("div", "body", message.content);
    const made = element("article", "message user", ...chips, ...(message.content ? [body] : []));
    made.setAttribute("aria-label", "You");
    if (!isRunning) {
      const tools = element("div", "tools", button("Edit", () => this.#edit(index)), copyButton(message.content));
      made.append(tools);
    }
    return made;
  }

  #answer(message, index, isRunning) {
    const isLast = index === this.#conversation.messages.length - 1;
    const isGrowing = isRunning && isLast;
    const made = element("article", "message assistant");
    made.setAttribute("aria-label", "Model");
    if (message.reasoning) {
      const details = element("details", "", element("summary", "", message.content || !isGrowing ? "Thoughts" : "Thinking ..."));
      details.append(element("div", "thought", message.reasoning));
      details.open = isGrowing && !message.content;
      made.append(details);
    }
    const body = element("div", "body");
    body.append(render(message.content));
    made.append(body);
    if (isGrowing) {
      // The caret stands behind the last text.
      let last = body;
      while (last.lastElementChild && !last.lastElementChild.matches("a, code, .code, .table, strong, em")) last = last.lastElementChild;
      last.classList.add("busy");
    }
    if (message.error) made.append(element("div", "failed", message.error));
    if (!isRunning) made.append(this.#tools(message, isLast));
    return made;
  }

  #tools(message, isLast) {
    const tools = element("div", "tools");
    if (message.content) tools.append(copyButton(message.content));
    if (isLast) tools.append(button(message.error ? "Try again" : "Regenerate", () => this.#on.onRegenerate()));
    const facts = [];
    if (FINISHES[message.finish]) facts.push(FINISHES[message.finish]);
    if (message.speed) facts.push(`${message.usage?.completion_tokens ?? "?"} tokens, ${message.speed.toFixed(1)}/s`);
    if (facts.length) tools.append(element("span", "note", facts.join(" ")));
    return tools;
  }

  #edit(index) {
    const message = this.#conversation.messages[index];
    const box = element("textarea");
    box.value = message.content;
    box.setAttribute("aria-label", "Edit your message");
    const done = () => this.show(this.#conversation, false);
    const send = () => {
      if (box.value.trim()) this.#on.onEdit(index, box.value);
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
    const editor = element("div", "editor", box, element("div", "actions", button("Cancel", done), save));
    this.#drawn[index].replaceChildren(editor);
    box.focus();
  }
}

function copyButton(text) {
  const made = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      made.textContent = "Copied";
    } catch {
      made.textContent = "No access";
    }
    setTimeout(() => (made.textContent = "Copy"), 1500);
  });
  return made;
}

export function size(bytes) {
  return bytes < 1024 ? `${bytes} B` : bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / (1 << 20)).toFixed(1)} MB`;
}
