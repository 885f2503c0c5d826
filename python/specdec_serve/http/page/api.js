// The server's API: chats as streams, models and metrics.

const BASE = new URL("..", import.meta.url); // of the server, whatever path a proxy has given it

/** A request that failed; `status` is HTTP's, or 0 where no answer came. */
export class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server cannot be reached.");
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // an answer of something else, such as a proxy
  }
  throw new RequestError(message, response.status);
}

function headersOf(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** The events of a stream of server-sent events, as text. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ")) yield line.slice(6).trimEnd();
    }
  }
}

/**
 * The chunks of a chat's stream, parsed. Throws RequestError where the server refuses or goes away,
 * AbortError after `signal`.
 */
export async function* chat(body, key, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headersOf(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  try {
    for await (const text of eventsOf(response.body)) {
      if (text === "[DONE]") return;
      const chunk = JSON.parse(text);
      if (chunk.error) throw new RequestError(chunk.error.message, chunk.error.code);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof RequestError) throw error;
    // The reader's error, whose words differ from browser to browser.
  }
  throw new RequestError("The connection ended before the answer did.");
}

/** The model that is served: {name, contextLength}, the latter in tokens, null if unknown. */
export async function servedModel(key) {
  const response = await request("v1/models", { headers: headersOf(key) });
  const [{ id, max_model_len }] = (await response.json()).data;
  return { name: id, contextLength: max_model_len ?? null };
}

/** The server's metrics by name; values of different labels are added. */
export async function metrics() {
  const response = await request("metrics", { cache: "no-store" });
  const values = new Map();
  for (const line of (await response.text()).split("\n")) {
    const found = /^([\w:]+)(?:\{.*\})? (\S+)/.exec(line);
    if (found) values.set(found[1], (values.get(found[1]) ?? 0) + Number(found[2]));
  }
  return values;
}
