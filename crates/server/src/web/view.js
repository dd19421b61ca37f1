// Draws one conversation. A streaming answer is drawn at most once a frame, and the view follows it only while the
// reader is at the end.

import { button, element } from "./dom.js";
import { DrawnMessage } from "./message.js";

const STARTERS = ["Why is the sky blue?", "Explain a mutex to a child", "Write a haiku about the sea"];
const NEAR_END_PX = 60;

export class View {
  #log;
  #on;
  #drawn = new Map(); // by the message's id
  #conversation;
  #frame;

  constructor(log, on) {
    this.#log = log;
    this.#on = on;
  }

  /** Shows a conversation's branch; messages that are there already stay where they are. */
  show(conversation, isRunning) {
    const isOther = this.#conversation?.id !== conversation.id;
    if (this.#conversation !== conversation) this.#drawn.clear();
    this.#conversation = conversation;
    const messages = conversation.messages;
    const elements = messages.map((message, index) => {
      const isLast = index === messages.length - 1;
      if (!this.#drawn.has(message.id)) this.#drawn.set(message.id, new DrawnMessage(message, this.#on));
      const drawn = this.#drawn.get(message.id);
      drawn.draw({ isLast, isGrowing: isRunning && isLast, versions: conversation.versions(message) });
      return drawn.element;
    });
    this.#place(elements.length ? elements : [this.#empty()]);
    if (isOther) this.scrollToEnd();
  }

  /** Changes only what is different. */
  #place(elements) {
    elements.forEach((made, index) => {
      if (this.#log.children[index] !== made) this.#log.insertBefore(made, this.#log.children[index] ?? null);
    });
    while (this.#log.children.length > elements.length) this.#log.lastElementChild.remove();
  }

  setPhase(message, phase) {
    const follow = this.#isAtEnd();
    this.#drawn.get(message.id)?.setPhase(phase);
    if (follow) this.scrollToEnd();
  }

  /** Draws a message that grew, on the next frame. */
  update(message) {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = undefined;
      const follow = this.#isAtEnd();
      this.#drawn.get(message.id)?.setPhase();
      this.#drawn.get(message.id)?.grow();
      if (follow) this.scrollToEnd();
    });
  }

  finish() {
    if (this.#frame) cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    // A reader who looks at something else is left there.
    const follow = this.#isAtEnd();
    this.show(this.#conversation, false);
    if (follow) this.scrollToEnd();
  }

  scrollToEnd() {
    this.#log.scrollTop = this.#log.scrollHeight;
  }

  onScroll(action) {
    this.#log.addEventListener("scroll", () => action(this.#isAtEnd()));
  }

  /** Brings a message into sight, and marks it for a moment. */
  reveal(message) {
    const made = this.#drawn.get(message.id)?.element;
    if (!made) return;
    made.scrollIntoView({ block: "center" });
    made.classList.add("found");
    setTimeout(() => made.classList.remove("found"), 2000);
  }

  editLast() {
    const last = this.#conversation.messages.findLast((m) => m.role === "user");
    if (last) this.#drawn.get(last.id).edit();
  }

  #isAtEnd() {
    return this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < NEAR_END_PX;
  }

  #empty() {
    const starters = element("div", "starters", ...STARTERS.map((text) => button(text, () => this.#on.onStarter(text))));
    return element(
      "div",
      "empty",
      element("h2", "", "What shall we talk about?"),
      "The model runs on this server and nowhere else.",
      starters,
    );
  }
}
