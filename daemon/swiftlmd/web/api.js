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

async function post(path, body, signal) {
  const answer = await fetch(path, {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal,
  });
  if (answer.ok) return answer;
  const { error = {} } = await answer.json().catch(() => ({}));
  throw new Refused(error.message || `the daemon answered ${answer.status}`, answer.status,
    error.code);
}

export const call = async (name, body = {}) => (await post(`/api/${name}`, body)).json();

export async function* events(path, body, signal) {
  const answer = await post(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Refused(event.error.message, 200, event.error.code);
      if (event.fault) throw new Refused(event.fault.message, 200, event.fault.code);
      yield event;
    }
  }
}

export const operation = (name, body, signal) => events(`/api/${name}`, body, signal);
