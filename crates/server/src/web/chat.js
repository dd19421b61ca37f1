// One answer being made: the request, what phase it is in, what arrived, and how it ended. Knows no element.

import * as api from "./api.js";

const SAVE_EVERY_MS = 1000; // while an answer grows
const LOOK_AFTER_MS = 300; // at whether the model is in memory
const TICK_MS = 500;

export class Chat {
  #on;
  #running;

  /** `on`: onPhase(message, phase), onGrow(message, live), onSave(conversation), onEnd(conversation, message, error). */
  constructor(on) {
    this.#on = on;
  }

  get isRunning() {
    return Boolean(this.#running);
  }

  isRunningIn(conversation) {
    return this.#running?.conversation === conversation;
  }

  /** The conversation that an answer is being made for. */
  get conversation() {
    return this.#running?.conversation;
  }

  stop() {
    this.#running?.controller.abort();
  }

  /** Makes or continues an answer; resolves when it has ended, in whatever way. */
  async run(conversation, message, isContinued = false) {
    const controller = new AbortController();
    this.#running = { conversation, controller };
    const request = conversation.toRequest(message, isContinued);
    Object.assign(message, { isRunning: true, model: conversation.model, error: undefined, finish: undefined });
    const started = performance.now();
    const tokensBefore = isContinued ? (message.usage?.completion_tokens ?? 0) : 0;
    const phase = this.#watch(message, started);
    const live = { tokens: 0, first: undefined };
    let saved = started;
    let failure;
    try {
      const grow = (delta) => {
        phase.end();
        const now = performance.now();
        live.first ??= now;
        live.tokens += 1;
        message.content += delta.text;
        message.reasoning = (message.reasoning ?? "") + delta.reasoning;
        if (now - saved > SAVE_EVERY_MS) {
          saved = now;
          this.#on.onSave(conversation);
        }
        this.#on.onGrow(message, live);
      };
      const result = await api.streamChat(request, controller.signal, grow, phase.read);
      finish(message, result, live, started);
      if (message.usage) message.usage.completion_tokens += tokensBefore;
    } catch (error) {
      if (error.name === "AbortError") message.finish = "stopped";
      else {
        failure = error;
        message.error = await explain(error, message);
      }
    }
    phase.end();
    message.isRunning = false;
    this.#running = undefined;
    conversation.updated = Date.now();
    await this.#on.onEnd(conversation, message, failure);
  }

  /** Tells what is waited for until the first piece comes. */
  #watch(message, started) {
    let text = `Waiting for ${message.model}`;
    let share;
    let isOver = false;
    const tell = () => this.#on.onPhase(message, { text, share, seconds: (performance.now() - started) / 1000 });
    const look = async () => {
      while (!isOver) {
        try {
          const model = await api.model(message.model);
          if (isOver) return;
          const isLoading = model.isLoaded === false && share === undefined;
          text = isLoading ? `Loading ${message.model}` : "Reading the prompt";
          tell();
          if (!isLoading) return;
        } catch {
          return; // The request itself tells what is wrong.
        }
        await new Promise((resolve) => setTimeout(resolve, TICK_MS));
      }
    };
    const timers = [setTimeout(look, LOOK_AFTER_MS), setInterval(tell, TICK_MS)];
    // When the message is on screen.
    queueMicrotask(tell);
    return {
      /** So much of the prompt is read, from 0 to 1. */
      read(done) {
        if (isOver) return;
        share = done;
        text = "Reading the prompt";
        tell();
      },
      end() {
        isOver = true;
        timers.forEach(clearTimeout);
      },
    };
  }
}

function finish(message, result, live, started) {
  message.finish = result.finish;
  message.usage = result.usage;
  const tokens = result.usage?.completion_tokens ?? live.tokens;
  message.speed = tokens > 1 && live.first ? (tokens - 1) / ((performance.now() - live.first) / 1000) : undefined;
  message.firstToken = live.first ? (live.first - started) / 1000 : undefined;
}

/** What happened, and what can be done about it. */
async function explain(error, message) {
  if (error.status === 429) {
    const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : " Try again in a moment.";
    return `The server is busy.${wait}`;
  }
  const text = error.message || String(error);
  const said = text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
  if (error.status !== 0 || !message.content) return said;
  const state = (await api.isAlive())
    ? "The server is running again."
    : "The server no longer answers: it was stopped or it crashed.";
  return `${said} ${state} What arrived so far is kept; “Continue” picks up from there.`;
}
