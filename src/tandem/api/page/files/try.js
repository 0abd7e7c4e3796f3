// A conversation with the model, token by token, and the same call for a terminal or a program.
import { html, nothing } from "./lit-html.js";
import { Prompt, promptView } from "./prompt.js";
import { link } from "./requests.js";
import { stream } from "./server.js";
import { count, rate, seconds, share } from "./words.js";

const DEFAULTS = { model: "", system: "", temperature: 0.8, top_p: 1, max_tokens: 256, seed: "", logprobs: true };

export class Talk {
  constructor(draw) {
    this.draw = draw;
    this.turns = [];
    this.settings = { ...DEFAULTS };
    this.asking = null;
  }

  bodyOf(turns) {
    const { model, system, temperature, top_p: topP, max_tokens: most, seed, logprobs } = this.settings;
    const said = turns.filter((turn) => turn.text !== "");
    return {
      model,
      messages: [
        ...(system ? [{ role: "system", content: system }] : []),
        ...said.map(({ role, text }) => ({ role, content: text })),
      ],
      temperature,
      top_p: topP,
      max_tokens: most,
      ...(seed === "" ? {} : { seed: Number(seed) }),
      ...(logprobs ? { logprobs: true, top_logprobs: 3 } : {}),
    };
  }

  async ask(text) {
    this.turns.push({ role: "user", text });
    const body = { ...this.bodyOf(this.turns), stream: true, stream_options: { include_usage: true }, return_token_sources: true };
    const turn = { role: "assistant", text: "", tokens: [], drawnBy: [], began: performance.now(), prompt: new Prompt(body, this.draw) };
    this.turns.push(turn);
    this.asking = new AbortController();
    this.draw();
    try {
      for await (const event of stream("v1/chat/completions", body, this.asking.signal)) {
        this.take(turn, event);
        this.draw();
      }
    } catch (error) {
      if (error.name === "AbortError") turn.end = "stopped";
      else turn.problem = error instanceof TypeError ? "The server does not answer." : error.message;
    }
    turn.lasted = performance.now() - turn.began;
    this.asking = null;
    this.draw();
  }

  take(turn, event) {
    if (event.requestId) turn.call = event.requestId;
    turn.id ??= event.id;
    turn.usage = event.usage ?? turn.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const piece = (choice.delta.reasoning_content ?? choice.delta.reasoning ?? "") + (choice.delta.content ?? "");
    turn.end = choice.finish_reason ?? turn.end;
    if (!piece && !choice.logprobs?.content.length) return;
    turn.first ??= performance.now() - turn.began;
    turn.text += choice.delta.content ?? "";
    const sources = choice.token_sources ?? [];
    // The first token is the prefill worker's, the second the decode worker's: others took over.
    for (const [worker] of sources.slice(0, 2)) if (turn.drawnBy.length < 2) turn.drawnBy.push(worker);
    turn.tokens.push({
      text: piece,
      logprobs: choice.logprobs?.content ?? [],
      sources,
      drawnBy: turn.drawnBy,
    });
  }

  stop() {
    this.asking?.abort();
  }

  forget() {
    this.stop();
    this.turns = [];
    this.draw();
  }
}

export function tryView(talk, models) {
  talk.settings.model ||= models[0] ?? "";
  const send = (event) => {
    event.preventDefault();
    const box = event.target.elements.question;
    const text = box.value.trim();
    if (!text || talk.asking) return;
    box.value = "";
    talk.ask(text);
  };
  const enter = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  };
  return html`
    <div class="try">
      <section class="card" aria-label="Conversation">
        <div class="talk" role="log" aria-live="off">${talk.turns.map(turnView)}</div>
        <form class="ask" @submit=${send}>
          <label><span class="unseen">Your message</span>
            <textarea name="question" placeholder="Ask something. Enter sends, Shift+Enter begins a line." @keydown=${enter}></textarea></label>
          <div class="row">
            <button class="main" ?disabled=${Boolean(talk.asking)}>Send</button>
            <button type="button" ?disabled=${!talk.asking} @click=${() => talk.stop()}>Stop</button>
            <button type="button" ?disabled=${!talk.turns.length} @click=${() => talk.forget()}>New</button>
          </div>
        </form>
        ${talk.turns.length ? sharing(talk) : nothing}
      </section>
      ${settings(talk, models)}
    </div>`;
}

function settings(talk, models) {
  const { settings: now } = talk;
  const set = (name, read) => (event) => {
    now[name] = read(event.target);
    talk.draw();
  };
  const number = (name, title, low, high, step) => html`
    <label>${title}<input type="number" min=${low} max=${high} step=${step} .value=${String(now[name])}
      @change=${set(name, (input) => (input.value === "" ? DEFAULTS[name] : Number(input.value)))}></label>`;
  return html`
    <section class="card" aria-labelledby="settings">
      <h2 id="settings">Parameters</h2>
      <label>Model<select @change=${set("model", (input) => input.value)}>
        ${models.map((each) => html`<option ?selected=${each === now.model}>${each}</option>`)}</select></label>
      <label>System<textarea rows="2" .value=${now.system} @change=${set("system", (input) => input.value)}></textarea></label>
      ${number("temperature", "Temperature", 0, 2, 0.1)} ${number("top_p", "Top p", 0, 1, 0.05)}
      ${number("max_tokens", "Tokens at most", 1, 1000000, 1)}
      <label>Seed<input type="number" step="1" .value=${String(now.seed)} placeholder="drawn"
        @change=${set("seed", (input) => input.value)}></label>
      <label class="line"><input type="checkbox" .checked=${now.logprobs}
        @change=${set("logprobs", (input) => input.checked)}>Log-probabilities</label>
      <p class="note">With them, shaded tokens were unlikely (<span class="token p1">below 50 %</span>,
        <span class="token p2">below 10 %</span>); point at one to see what else could have come.
        <span class="token drafted">Underlined</span> ones had been guessed by a draft,
        <span class="token elsewhere">dotted</span> ones were drawn by a worker that had taken the answer over.</p>
    </section>`;
}

function turnView(turn) {
  if (turn.role === "user") {
    return html`<div class="turn user"><span class="who">you</span><span class="said">${turn.text}</span></div>`;
  }
  return html`
    <div class="turn"><span class="who">model</span><span class="said">${turn.tokens.map(pieceView)}</span>
      ${turn.problem ? html`<p class="problem" role="alert">${turn.problem}</p>` : nothing}
      ${summary(turn)}</div>`;
}

function pieceView({ text, logprobs, sources, drawnBy }) {
  const from = sources.map(([worker, drafted]) => ({ worker, drafted, elsewhere: !drawnBy.includes(worker) }));
  if (!logprobs.length) {
    const marked = from.some((each) => each.drafted || each.elsewhere);
    return marked ? html`<span class="token ${marks(from)}" title=${origin(from)}>${text}</span>` : text;
  }
  // Text that was held back, of a character in pieces or a possible stop, comes with later tokens.
  if (logprobs.map((each) => each.token).join("") !== text) return tokenView(text, logprobs[0], logprobs, from);
  return logprobs.map((each, place) => tokenView(each.token, each, [each], from.slice(place, place + 1)));
}

function marks(from) {
  const drafted = from.some((each) => each.drafted) ? "drafted" : "";
  return `${drafted} ${from.some((each) => each.elsewhere) ? "elsewhere" : ""}`;
}

const origin = (from) =>
  from.map((each) => `drawn by ${each.worker}${each.drafted ? ", as a draft had guessed" : ""}`).join("\n");

function tokenView(text, first, all, from) {
  const chance = Math.exp(Math.min(...all.map((each) => each.logprob)));
  const shade = chance < 0.1 ? "p2" : chance < 0.5 ? "p1" : "";
  const others = first.top_logprobs.map((each) => `${JSON.stringify(each.token)} ${percent(each.logprob)}`);
  const title = [`${JSON.stringify(text)} ${percent(first.logprob)}`, ...others, origin(from)].join("\n");
  return html`<span class="token ${shade} ${marks(from)}" title=${title}>${text}</span>`;
}

const percent = (logprob) => `${(Math.exp(logprob) * 100).toPrecision(3)} %`;

function summary(turn) {
  if (turn.lasted == null && !turn.usage) return nothing;
  const { usage } = turn;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const between = (turn.lasted ?? 0) - (turn.first ?? 0);
  const drawn = usage?.completion_tokens ?? turn.tokens.length;
  const name = turn.call ?? turn.id;
  return html`<p class="note">
    ${turn.first == null ? nothing : html`first token after ${seconds(turn.first / 1000)};`}
    ${count(drawn)} tokens${drawn > 1 && between > 0 ? html`, ${rate((drawn - 1) / (between / 1000))} a second` : nothing};
    ${usage
      ? html`prompt ${count(usage.prompt_tokens)},
          <span class="part" aria-hidden="true"><i .style=${`width:${(cached / usage.prompt_tokens) * 100}%`}></i></span>
          ${share(cached / usage.prompt_tokens)} of it cached;`
      : nothing}
    ${turn.end ?? nothing}.
    ${name ? html`<a href=${link(name)}>Where did the time go?</a>` : nothing}</p>
    ${usage ? promptView(turn.prompt, usage.prompt_tokens, cached) : nothing}`;
}

function sharing(talk) {
  const asked = talk.turns.findLastIndex((turn) => turn.role === "user") + 1;
  const body = talk.bodyOf(talk.turns.slice(0, asked));
  const url = new URL(".", location.href).href;
  const json = JSON.stringify(body, null, 2);
  const curl = `curl ${url}v1/chat/completions -H 'Content-Type: application/json' \\\n  -H "Authorization: Bearer $TANDEM_API_KEY" \\\n  -d '${json.replaceAll("'", "'\\''")}'`;
  const python = `from openai import OpenAI\n\nclient = OpenAI(base_url="${url}v1", api_key="none")\nanswer = client.chat.completions.create(**${inPython(body)})\nprint(answer.choices[0].message.content)`;
  const copy = (text) => () => navigator.clipboard?.writeText(text);
  return html`
    <details><summary>Share as curl or Python</summary>
      ${[["curl", curl], ["Python", python]].map(
        ([name, text]) => html`<p class="row"><b>${name}</b><button @click=${copy(text)}>Copy</button></p>
          <pre tabindex="0">${text}</pre>`,
      )}
    </details>`;
}

function inPython(value, indent = "") {
  const deeper = `${indent}    `;
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map((each) => inPython(each, deeper)).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).map(([name, each]) => `${deeper}${JSON.stringify(name)}: ${inPython(each, deeper)},`);
  return `{\n${fields.join("\n")}\n${indent}}`;
}
