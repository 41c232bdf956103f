// Every request to the daemon.

export class Refused extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers() {
  const key = localStorage.getItem("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// Beside the page: a proxy may serve both below a path of its own.
const placed = (path) => new URL(path.slice(1), document.baseURI);

async function send(method, path, body, signal, more = {}) {
  const answer = await fetch(placed(path), {
    method, headers: { ...headers(), ...more }, signal,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok) return answer;
  const { error = {} } = await answer.json().catch(() => ({}));
  // Not said by the daemon, but by a proxy that does not reach it.
  if (!error.message && [502, 503, 504].includes(answer.status)) throw new TypeError("away");
  throw new Refused(error.message || `the daemon answered ${answer.status}`, answer.status,
    error.code);
}

// Sent to the window when an act of ours changed what the status says.
export const CHANGED = "swiftlm-changed";
export const changed = () => dispatchEvent(new Event(CHANGED));

export const call = async (name, body = {}) => (await send("POST", `/admin/${name}`, body)).json();

// The events; with `comments` also what the daemon says of its progress, as { waits }.
async function* lines(answer, comments = false) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) {
      if (line.startsWith("data: ")) yield line.slice(6);
      else if (comments && line.startsWith(": ")) yield { waits: line.slice(2) };
    }
  }
}

function parsed(line) {
  const event = JSON.parse(line);
  const wrong = event.error || event.fault;
  if (wrong) throw new Refused(wrong.message, 200, wrong.code);
  return event;
}

export async function* operation(name, body, signal) {
  for await (const line of lines(await send("POST", `/admin/${name}`, body, signal))) {
    yield parsed(line);
  }
}

const pause = (ms) => new Promise((resume) => { setTimeout(resume, ms); });
const RETRIES = 20;

// The chunks of an answer that the daemon keeps under `key`. A connection that breaks (a locked
// screen, a lost network) is taken up where it was; `body` null takes up an answer from its start.
export async function* keptAnswer(key, body, signal) {
  let seen = 0;
  let failures = 0;
  const ask = () => send("POST", "/v1/chat/completions", body, signal, { "X-Keep-Answer": key });
  let open = body && ask;
  for (;;) {
    try {
      const again = () => send("GET", `/v1/answers/${key}?from=${seen}`, undefined, signal);
      for await (const line of lines(await (open || again)(), true)) {
        if (line.waits) { yield line; continue; }
        seen += 1;
        failures = 0;
        if (line === "[DONE]") return;
        yield parsed(line);
      }
      throw new TypeError("the stream broke off");
    } catch (error) {
      // The request never arrived: the daemon knows no such answer, so it is sent again.
      if (error.status === 404 && body && !open && !seen && failures) {
        open = ask;
        continue;
      }
      if (error.status === 409 && open && failures) { // or it did, late
        open = null;
        continue;
      }
      if (error instanceof Refused || error.name === "AbortError") throw error;
      failures += 1;
      if (failures > RETRIES) throw error;
      open = null;
      await pause(Math.min(250 * failures, 3000));
    }
  }
}

export const request = async (method, path, body) => (await send(method, path, body)).json();

export const complete = async (body) => (await send("POST", "/v1/chat/completions", body)).json();

export const forgetAnswer = (key) => send("DELETE", `/v1/answers/${key}`).catch(() => {});

export const pairWith = async (token, name) => (await send("POST", "/pair", { token, name })).json();
