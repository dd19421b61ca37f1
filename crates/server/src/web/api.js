// What the page asks of the server: the model list and streamed chat completions, in OpenAI's shapes.

export class ApiError extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const KEY = "roci.key";

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
    throw new ApiError(0, "The server does not answer. Is it still running?");
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

/** The models the server offers: [{ id, context }]. */
export async function models() {
  const body = await (await request("v1/models")).json();
  return body.data.map((m) => ({ id: m.id, context: m.max_model_len ?? m.context_length ?? m.meta?.n_ctx }));
}

/** Server-sent events of a response body, as their data strings. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      let end;
      while ((end = /\r?\n\r?\n/.exec(rest))) {
        const block = rest.slice(0, end.index);
        rest = rest.slice(end.index + end[0].length);
        const data = block
          .split(/\r?\n/)
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).replace(/^ /, ""));
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Streams one answer. `onDelta({ text, reasoning })` is called for each piece; resolves to
 * { finish, usage, timings } when the answer is whole. A stream that breaks off is an error, never a silent end.
 */
export async function streamChat(body, signal, onDelta) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
  const result = { finish: undefined, usage: undefined, timings: undefined };
  let isDone = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      isDone = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(response.status, chunk.error.message ?? "The server reported an error.");
    if (chunk.usage) result.usage = chunk.usage;
    if (chunk.timings) result.timings = chunk.timings;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    if (delta.content || reasoning) onDelta({ text: delta.content ?? "", reasoning });
    if (choice.finish_reason) result.finish = choice.finish_reason;
  }
  if (!isDone && !result.finish) throw new ApiError(0, "The answer broke off: the connection to the server was lost.");
  return result;
}
