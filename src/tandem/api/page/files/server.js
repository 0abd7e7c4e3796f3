// Calls of this server's API. The key is the tab's alone, and gone with it.
const KEY = "tandem-key";

export function readKey() {
  // A link that brings a key says it behind the #, which browsers send to nobody.
  const found = location.hash.match(/[#&]key=([^&]+)/);
  if (found) {
    sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
    history.replaceState(null, "", location.href.replace(/&?key=[^&]+/, ""));
  }
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
}

export class Refused extends Error {
  constructor(status, message, retryAfter) {
    super(retryAfter ? `${message} (again in ${retryAfter} s)` : message);
    this.status = status;
  }
}

async function refusal(response) {
  let message = response.statusText || `status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
  }
  return new Refused(response.status, message, response.headers.get("Retry-After"));
}

export async function read(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

export async function send(path, body) {
  const more = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await fetch(path, {
    method: "POST",
    headers: headers(more),
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// The events of a streamed answer, after its headers.
export async function* stream(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  yield { requestId: response.headers.get("X-Request-Id") };
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.startsWith("data: ") ? event.slice(6) : "";
      if (!data || data === "[DONE]") continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Refused(response.status, parsed.error.message);
      yield parsed;
    }
  }
}
