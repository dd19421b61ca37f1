// What the page asks of the server: models, streamed chat completions in OpenAI's shapes, downloads in Ollama's.

export class ApiError extends Error {
  /** `status` 0: there was no answer, or only a part of one. */
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const KEY = "roci.key";
const AWAY = "The server does not answer. Is it still running?";
const LOST = "The connection to the server was lost in the middle of the answer.";

export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function setApiKey(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // No storage: the key is asked for again after a reload.
  }
}

export function headers() {
  const key = apiKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Fetches and turns every failure into an ApiError a person can read. */
export async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, AWAY);
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    const body = await response.json();
    message = body.error?.message ?? (typeof body.error === "string" ? body.error : message);
  } catch {
    // Not JSON: the status says it.
  }
  throw new ApiError(response.status, message, Number(response.headers.get("Retry-After")) || undefined);
}

function post(path, body, signal) {
  return request(path, { method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

function describe(model) {
  const { id, meta } = model;
  return {
    id,
    context: model.max_model_len ?? model.context_length ?? meta?.n_ctx,
    isLoaded: meta?.is_loaded,
    bytes: meta?.file_bytes,
    sampling: meta?.sampling,
  };
}

/** The models the server offers: [{ id, context, isLoaded, bytes, sampling }]. */
export async function models() {
  return (await (await request("v1/models")).json()).data.map(describe);
}

export async function model(name) {
  return describe(await (await request(`v1/models/${encodeURIComponent(name)}`)).json());
}

/** Whether the server takes requests. */
export async function isAlive() {
  try {
    await request("health");
    return true;
  } catch {
    return false;
  }
}

/** The pieces of a response body between `mark`s. A connection that breaks is an ApiError. */
async function* pieces(body, mark) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let got;
      try {
        got = await reader.read();
      } catch (error) {
        throw error.name === "AbortError" ? error : new ApiError(0, LOST);
      }
      if (got.done) break;
      rest += got.value;
      const whole = rest.split(mark);
      rest = whole.pop();
      yield* whole;
    }
    if (rest.trim()) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Server-sent events of a response body, as their data strings. */
async function* events(body) {
  for await (const event of pieces(body, /\r?\n\r?\n/)) {
    const data = event
      .split(/\r?\n/)
      .filter((line) => line.startsWith("data:"))
      .map((line) => line.slice(5).replace(/^ /, ""));
    if (data.length) yield data.join("\n");
  }
}

/**
 * Streams one answer. `onDelta({ text, reasoning })` is called for each piece, `onProgress(share)` with how much of the
 * prompt is read, from 0 to 1, before the first; resolves to
 * { finish, usage, timings } when the answer is whole. A stream that breaks off is an error, never a silent end.
 */
export async function streamChat(body, signal, onDelta, onProgress = () => {}) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true };
  const response = await post("v1/chat/completions", asked, signal);
  const result = { finish: undefined, usage: undefined, timings: undefined };
  let isDone = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      isDone = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(response.status, chunk.error.message ?? "The server reported an error.");
    if (chunk.prompt_progress) onProgress(chunk.prompt_progress.processed / chunk.prompt_progress.total);
    if (chunk.usage) result.usage = chunk.usage;
    if (chunk.timings) result.timings = chunk.timings;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    if (delta.content || reasoning) onDelta({ text: delta.content ?? "", reasoning });
    if (choice.finish_reason) result.finish = choice.finish_reason;
  }
  if (!isDone && !result.finish) throw new ApiError(0, LOST);
  return result;
}

/** Asks the server to download a model; `onStatus({ status, total, completed })` is called as Ollama reports it. */
export async function pull(name, signal, onStatus) {
  const response = await post("api/pull", { model: name, stream: true }, signal);
  for await (const line of pieces(response.body, "\n")) {
    if (!line.trim()) continue;
    const report = JSON.parse(line);
    if (report.error) throw new ApiError(response.status, report.error);
    onStatus(report);
  }
}
