import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { answer, asMessages } from "./answer.js";
import { forgetAnswer } from "./api.js";
import { Composer } from "./composer.js";
import * as talks from "./conversations.js";
import { shortest } from "./format.js";
import { Message } from "./message.js";
import { Notice, Welcome } from "./states.js";
import { TalkChoice, TalkList } from "./talklist.js";

const SAMPLING = { temperature: [0, 2, 0.05], top_p: [0, 1, 0.05], max_tokens: [1, 131072, 1] };

function Options({ talk, onChange }) {
  const set = (name, value) => onChange({ ...talk, sampling: { ...talk.sampling,
    [name]: value === "" ? undefined : Number(value) } });
  return html`<details class="options"><summary>System prompt and sampling</summary>
    <label>System prompt<textarea value=${talk.system} rows="3"
      onChange=${(event) => onChange({ ...talk, system: event.target.value })} /></label>
    <div class="row">${Object.entries(SAMPLING).map(([name, [min, max, step]]) => html`<label>
      ${name.replace("_", " ")}<input type="number" min=${min} max=${max} step=${step}
      placeholder="default" value=${talk.sampling[name] ?? ""}
      onChange=${(event) => set(name, event.target.value)} /></label>`)}</div></details>`;
}

function useTalks() {
  const [all, setAll] = useState([]);
  const [talk, setTalk] = useState(talks.fresh);
  const reload = async () => setAll(await talks.all());
  useEffect(() => {
    talks.all().then((found) => { setAll(found); if (found[0]) setTalk(found[0]); });
  }, []);
  const keep = async (changed) => {
    setTalk(changed);
    await talks.save(changed);
    await reload();
  };
  return { all, talk, setTalk, keep, reload };
}

// The answer that is under way, and what begins one. `keep` stores a changed conversation.
function useAnswer(talk, model, keep) {
  const [live, setLive] = useState(null);
  const abort = useRef();
  // `body` null: the page was loaded again while the answer went on.
  const follow = async (start, { key, parent, model: asked }, body) => {
    const stop = new AbortController();
    abort.current = () => { stop.abort(); forgetAnswer(key); };
    let last;
    setLive({ role: "assistant", text: "", reasoning: "" });
    await answer(key, body, asked, stop.signal, (message) => {
      last = message;
      setLive(message);
    });
    setLive(null);
    const { pending, ...settled } = start;
    await keep(talks.add(settled, parent, last)[0]);
  };
  const run = async (start, parent) => {
    const key = talks.newId() + talks.newId();
    const history = talks.branch({ ...start, leaf: parent });
    const body = { model, messages: asMessages(start, history), stream: true, ...start.sampling,
      stream_options: { include_usage: true } };
    await keep({ ...start, pending: { key, parent, model } });
    await follow(start, { key, parent, model }, body);
  };
  useEffect(() => {
    if (talk.pending && !live) follow(talk, talk.pending, null);
  }, [talk.id]);
  return { live, run, stop: () => abort.current?.() };
}

function useShortcut(code, act) {
  useEffect(() => {
    const onKey = (event) => { if (event.altKey && event.code === code) { event.preventDefault(); act(); } };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
}

export function Chat({ status }) {
  const { all, talk, setTalk, keep, reload } = useTalks();
  const [chosen, setChosen] = useState("");
  const end = useRef();
  const ready = status.models.find((one) => one.state === "ready");
  const model = chosen || ready?.model || status.default_model || status.models[0]?.model || "";
  const { live, run, stop } = useAnswer(talk, model, keep);
  const shown = talks.branch(talk);
  useEffect(() => end.current?.scrollIntoView({ block: "end" }), [live?.text, talk.leaf]);

  const ask = async (text, images, parent = talk.leaf) => {
    const titled = talk.messages.length ? talk : { ...talk, title: text.slice(0, 48) };
    const [asked, question] = talks.add(titled, parent, { role: "user", text, images });
    await keep(asked);
    await run(asked, question.id);
  };
  const retry = async (message) => {
    const start = { ...talk, leaf: message.parent };
    setTalk(start);
    await run(start, message.parent);
  };
  const forget = async (gone) => {
    await talks.remove(gone.id);
    if (gone.id === talk.id) setTalk(talks.fresh());
    await reload();
  };
  const take = async (file) => { if (file) { await talks.importFrom(await file.text()); await reload(); } };
  const open = (other) => { if (!live) setTalk(other); };
  const anew = () => open(talks.fresh());
  useShortcut("KeyN", anew);

  const vision = Boolean(status.models.find((one) => one.model === model)?.vision);
  return html`<${TalkList} all=${all} current=${talk.id} onOpen=${open} onRemove=${forget}
      onNew=${anew} onImport=${take} />
    <section class="talk"><div class="bar"><select aria-label="Model" value=${model}
      onChange=${(event) => setChosen(event.target.value)}>${status.models.map((one) => html`
      <option value=${one.model}>${shortest(one.model, status.models)}</option>`)}</select>
      <${TalkChoice} all=${all} talk=${talk} onOpen=${open} onNew=${anew} /></div>
      <div class="messages" aria-live="polite" tabindex="0">
      ${!shown.length && !live && html`<${Welcome} status=${status} model=${model} />`}
      ${shown.map((message) => html`<${Message} key=${message.id} talk=${talk} message=${message}
        onRetry=${retry} onEdit=${(old, text) => ask(text, old.images, old.parent)}
        onShow=${(leaf) => keep({ ...talk, leaf })} />`)}
      ${live && html`<${Message} talk=${talk} message=${live} live />`}<div ref=${end}></div></div>
      <${Notice} status=${status} /><${Options} talk=${talk} onChange=${keep} />
      <${Composer} busy=${Boolean(live)} away=${status.link === "away"} vision=${vision}
        onSend=${ask} onStop=${stop} /></section>`;
}
