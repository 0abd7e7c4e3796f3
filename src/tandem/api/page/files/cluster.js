// The cluster at this moment and over the last minutes.
import "./chart.js";
import { html, nothing } from "./lit-html.js";
import { workersMap } from "./map.js";
import { send } from "./server.js";
import { age, bytes, count, rate, seconds, share } from "./words.js";

// What the figures at the top are about.
const LATELY_S = 60;
const BAD_EVENTS = ["lost", "failed"];

export function clusterView(state, actions) {
  if (!state.seen) return html`<p class="empty">Looking…</p>`;
  const { overview, is_operator: isOperator } = state.seen;
  const chosen = overview.workers.find((each) => each.worker === state.worker);
  return html`
    ${figures(overview, state.bins)}
    <section class="card" aria-labelledby="workers">
      <h2 id="workers">Workers</h2>
      ${workersMap(overview, state.seen, state.before, actions.choose, state.worker)}
      ${chosen ? workerCard(chosen, overview, isOperator, actions) : nothing}
      ${workersTable(overview)}
    </section>
    <div class="grid">${charts(overview, state.bins)}</div>
    <div class="grid">
      ${queues(overview, isOperator)} ${rejections(state.bins)} ${planner(overview)}
      ${tiers(overview)} ${recentEvents(overview)}
    </div>
    ${isOperator && overview.has_roles ? html`<div class="grid">${change(state, actions)}</div>${whatIf(state, actions)}` : nothing}`;
}

// Keys of the cluster file, changed while it runs: first shown, then applied.
function change(state, actions) {
  const { planned } = state;
  const settings = (form) => linesOf(new FormData(form));
  const look = (event) => {
    event.preventDefault();
    actions.applies(settings(event.target));
  };
  const may = planned && !planned.problem && !planned.refusals.length && !planned.applied && planned.keys.length;
  return html`
    <section class="card" aria-labelledby="change"><h2 id="change">Change</h2>
      <form class="ask" @submit=${look} @input=${actions.forgetsPlan}>
        <label>Settings of the cluster file, one a line
          <textarea name="settings" rows="2" required placeholder="policies.routing=round-robin"></textarea></label>
        <div class="row">
          <button>Show what changes</button>
          <button type="button" class="main" ?disabled=${!may}
            @click=${(event) => actions.applies(settings(event.target.form), planned.number)}>Apply</button>
        </div>
      </form>
      ${planned ? plannedChange(planned) : html`<p class="note">As tandem apply: nothing changes before it was shown, and no request fails for it.</p>`}
    </section>`;
}

function plannedChange(planned) {
  if (planned.problem) return html`<p class="problem" role="alert">${planned.problem}</p>`;
  const lines = [...planned.workers, ...planned.progress];
  return html`
    ${planned.keys.length
      ? html`<div class="scroll"><table><thead><tr><th>key</th><th>now</th><th>then</th><th>changes</th></tr></thead>
          <tbody>${planned.keys.map(
            (each) => html`<tr><td>${each.place}</td><td>${each.old}</td><td>${each.new}</td><td>${each.when}</td></tr>`,
          )}</tbody></table></div>`
      : html`<p class="empty">It runs by that already.</p>`}
    ${lines.map((line) => html`<p class="note">${line}</p>`)}
    ${[...planned.refusals, ...planned.problems].map((line) => html`<p class="problem" role="alert">${line}</p>`)}
    ${planned.applied ? html`<p class="good" role="status">Applied.</p>` : nothing}`;
}

const linesOf = (form) => form.get("settings").split("\n").map((line) => line.trim()).filter(Boolean);

// The last minutes again, with something changed, beside what happened.
function whatIf(state, actions) {
  const { overview } = state.seen;
  const pools = new Map();
  for (const { pool } of overview.workers) pools.set(pool, (pools.get(pool) ?? 0) + 1);
  const ask = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const workers = {};
    for (const [pool, count_] of pools) {
      const wanted = Number(form.get(`pool ${pool}`));
      if (wanted !== count_) workers[pool] = wanted;
    }
    actions.tries({ last_s: Number(form.get("minutes")) * 60, routing: form.get("routing"), workers, settings: linesOf(form) });
  };
  const { tried } = state;
  return html`
    <section class="card" aria-labelledby="what-if"><h2 id="what-if">What if?</h2>
      <form class="row" @submit=${ask}>
        <label>Minutes<input name="minutes" type="number" min="0.5" max="1440" step="0.5" value="1"></label>
        <label>Routing<select name="routing"><option value="">as it is</option>
          ${overview.routings.map((each) => html`<option>${each}</option>`)}</select></label>
        ${[...pools].map(([pool, count_]) => html`<label>${pool}<input name=${`pool ${pool}`} type="number" min="0" max="1024"
          .defaultValue=${String(count_)}></label>`)}
        <label>Settings of the cluster file, one a line
          <textarea name="settings" rows="1" placeholder="slo.ttft=1s"></textarea></label>
        <button class="main" ?disabled=${tried?.asking}>Simulate</button>
      </form>
      ${tried?.problem ? html`<p class="problem" role="alert">${tried.problem}</p>` : nothing}
      ${tried?.asking ? html`<p class="empty">The simulator plays the last minutes…</p>` : nothing}
      ${tried?.runs ? triedRuns(tried.runs) : nothing}
      <p class="note">The same requests from the journal, through the same policies in the simulator. The row that is
        unchanged beside the recorded one says how far the simulator is from these machines.</p>
    </section>`;
}

function triedRuns(runs) {
  return html`<div class="scroll"><table>
    <thead><tr><th></th><th class="number">requests</th><th class="number">goodput/s</th><th class="number">kept</th>
      <th class="number">TTFT p50</th><th class="number">p99</th><th class="number">TPOT p50</th><th class="number">p99</th>
      <th class="number">hits</th><th class="number">rejected</th></tr></thead>
    <tbody>${runs.map(
      (run) => html`<tr><td>${run.label}</td><td class="number">${count(run.requests)}</td>
        <td class="number">${rate(run.goodput_rps)}</td><td class="number">${share(run.attainment)}</td>
        <td class="number">${seconds(run.ttft_p50_s)}</td><td class="number">${seconds(run.ttft_p99_s)}</td>
        <td class="number">${seconds(run.tpot_p50_s)}</td><td class="number">${seconds(run.tpot_p99_s)}</td>
        <td class="number">${share(run.hit_ratio)}</td><td class="number">${count(run.rejected)}</td></tr>`,
    )}</tbody></table></div>`;
}

function lately(overview, bins) {
  const first = overview.current_bin - Math.ceil(LATELY_S / overview.bin_s);
  return [...bins.values()].filter((bin) => bin.number > first);
}

const sum = (bins, of) => bins.reduce((total, bin) => total + of(bin), 0);

function figures(overview, bins) {
  const recent = lately(overview, bins);
  const seconds_ = Math.min(LATELY_S, Math.max(overview.bin_s, overview.up_s));
  const ended = sum(recent, (bin) => bin.finished + bin.failed + rejectedIn(bin));
  const prompts = sum(recent, (bin) => bin.prompt_tokens);
  const used = sum(overview.workers, (each) => each.used_blocks);
  const total = sum(overview.workers, (each) => each.total_blocks);
  const shown = [
    ["running", count(overview.running)],
    ["waiting", count(overview.waiting)],
    ["tokens/s", rate(sum(recent, (bin) => bin.output_tokens) / seconds_)],
    ["goodput, requests/s", rate(sum(recent, (bin) => bin.kept) / seconds_)],
    [overview.slos.length ? "kept their SLO" : "ended well", ended ? share(sum(recent, (bin) => bin.kept) / ended) : "–"],
    ["TTFT, median", seconds(median(recent, "ttft"))],
    ["TPOT, median", seconds(median(recent, "tpot"))],
    ["prompt tokens cached", prompts ? share(sum(recent, (bin) => bin.cached_tokens) / prompts) : "–"],
    ["KV in use", total ? share(used / total) : "–"],
    ["taken over", count(overview.takeovers)],
  ];
  return html`
    <section class="card" aria-label="The last minute">
      <div class="stats">
        ${shown.map(([name, value]) => html`<div class="stat"><b>${value}</b><span>${name}</span></div>`)}
      </div>
      <p class="note">${overview.server}, up ${age(overview.up_s)}; rates and medians of the last minute.
        ${overview.silent.length ? html`<br><span class="bad">${overview.silent.join(", ")} did not answer.</span>` : nothing}
        ${overview.slos.map((each) => html`<br>SLO${each.service_class ? ` of ${each.service_class}` : ""}:
          ${each.ttft_s == null ? nothing : `TTFT ${seconds(each.ttft_s)}`}
          ${each.tpot_s == null ? nothing : `TPOT ${seconds(each.tpot_s)}`}`)}</p>
    </section>`;
}

// Of the bins' medians the one in the middle, each as often as it was measured.
function median(bins, name) {
  const known = bins.map((bin) => bin[name]).filter(Boolean).sort((one, other) => one.p50_s - other.p50_s);
  let left = sum(known, (each) => each.count) / 2;
  return known.find((each) => (left -= each.count) <= 0)?.p50_s ?? null;
}

const rejectedIn = (bin) => Object.values(bin.rejected).reduce((total, each) => total + each, 0);

function charts(overview, bins) {
  const known = Math.min(179, Math.ceil(overview.up_s / overview.bin_s));
  const first = Math.max(0, overview.current_bin - Math.max(known, 12));
  const now = Date.now() / 1000;
  const times = [];
  const found = [];
  // The bin that is being counted would look like a drop.
  for (let number = first; number < overview.current_bin; number++) {
    times.push(now - (overview.current_bin - number) * overview.bin_s);
    found.push(bins.get(number));
  }
  const line = (of) => found.map((bin) => (bin ? of(bin) : null));
  const perSecond = (of) => found.map((bin) => (bin ? of(bin) / overview.bin_s : 0));
  const bound = (name) =>
    overview.slos
      .filter((each) => each[name] != null)
      .map((each) => ({
        name: `SLO ${each.service_class}`.trim(),
        values: times.map(() => each[name]),
        dash: [4, 4],
        colour: "--good",
      }));
  const highest = (name) => Math.max(0, ...found.map((bin) => bin?.[name]?.p99_s ?? 0));
  const latency = (label, name, bounds) => ({
    label,
    format: seconds,
    note: bounds.map((each) => `${each.name} ${seconds(each.values[0])}`).join(", "),
    lines: [
      ...["p50", "p90", "p99"].map((each) => ({
        name: each,
        values: line((bin) => bin[name]?.[`${each}_s`] ?? null),
      })),
      // One far above all that was measured would press that flat.
      ...bounds.filter((each) => each.values[0] < 4 * highest(name)),
    ],
  });
  const all = [
    latency("TTFT", "ttft", bound("ttft_s")),
    latency("TPOT", "tpot", bound("tpot_s")),
    latency("ITL", "itl", []),
    {
      label: "Requests a second",
      format: rate,
      lines: [
        { name: "goodput", values: perSecond((bin) => bin.kept), colour: "--good" },
        { name: "finished", values: perSecond((bin) => bin.finished), colour: "--prefill" },
        { name: "rejected", values: perSecond(rejectedIn), colour: "--bad" },
      ],
    },
    {
      label: "Output tokens a second",
      format: rate,
      lines: [{ name: "tokens/s", values: perSecond((bin) => bin.output_tokens), colour: "--decode" }],
    },
    {
      label: "Prompt tokens cached",
      format: share,
      lines: [
        {
          name: "hit ratio",
          values: line((bin) => (bin.prompt_tokens ? bin.cached_tokens / bin.prompt_tokens : null)),
          colour: "--both",
        },
      ],
    },
  ];
  return all.map(
    (each) => html`
      <section class="card"><h2>${each.label} ${each.note ? html`<span class="note">${each.note}</span>` : nothing}</h2>
        <time-chart .data=${{ ...each, times }}></time-chart></section>`,
  );
}

function workersTable(overview) {
  return html`
    <details>
      <summary>As a table</summary>
      <div class="scroll"><table>
        <thead><tr><th>worker</th><th>role</th><th>state</th><th class="number">runs</th>
          <th class="number">waits</th><th class="number">KV</th><th class="number">prompts</th>
          <th class="number">tokens</th><th class="number">KV read</th><th class="number">KV given</th></tr></thead>
        <tbody>${overview.workers.map(
          (each) => html`<tr><td>${each.worker}</td><td class=${each.role}>${each.role}</td><td>${each.state}</td>
            <td class="number">${each.running}</td><td class="number">${each.waiting}</td>
            <td class="number">${share(each.used_blocks / each.total_blocks)}</td>
            <td class="number">${count(each.prompts)}</td><td class="number">${count(each.output_tokens)}</td>
            <td class="number">${bytes(each.moved_bytes)}</td><td class="number">${bytes(each.sent_bytes)}</td></tr>`,
        )}</tbody></table></div>
    </details>`;
}

function workerCard(worker, overview, isOperator, actions) {
  const order = async (path, body, said) => {
    try {
      const { status } = await send(`tandem/workers/${encodeURIComponent(worker.worker)}/${path}`, body);
      actions.said(`${said}: ${status}`);
    } catch (error) {
      actions.said(error.message);
      alert(error.message);
    }
  };
  const roles = ["prefill", "decode", "both"].filter((role) => role !== worker.role);
  return html`
    <div class="card" role="group" aria-label=${worker.worker}>
      <h3>${worker.worker}</h3>
      <p class="note">${worker.role}, ${worker.state}; ${worker.running} running, ${worker.waiting} waiting;
        ${count(worker.used_blocks * worker.block_size)} of ${count(worker.total_blocks * worker.block_size)} KV tokens in use;
        heard ${seconds(worker.last_seen_s)} ago.
        ${worker.failed_transfers ? html`<span class="bad">${worker.failed_transfers} transfers failed.</span>` : nothing}</p>
      ${!overview.has_roles
        ? nothing
        : isOperator
          ? html`<div class="row">
              ${worker.state === "ready"
                ? html`<button @click=${() => order("drain", {}, `drain ${worker.worker}`)}>Drain</button>
                    ${roles.map((role) => html`<button
                      @click=${() => order("drain", { then_role: role }, `${worker.worker} becomes ${role}`)}>Make it ${role}</button>`)}`
                : html`<button @click=${() => order("undrain", undefined, `undrain ${worker.worker}`)}>Undrain</button>`}
            </div>`
          : html`<p class="note">With an operator's key it can be drained, or given another role.</p>`}
    </div>`;
}

function queues(overview, isOperator) {
  return html`
    <section class="card"><h2>Queues</h2>
      ${overview.queues.length
        ? html`<div class="scroll"><table>
            <thead><tr><th>class</th>${isOperator ? html`<th>tenant</th>` : nothing}
              <th class="number">waiting</th><th class="number">running</th></tr></thead>
            <tbody>${overview.queues.map(
              (each) => html`<tr><td>${each.service_class || "–"}</td>
                ${isOperator ? html`<td>${each.tenant || "–"}</td>` : nothing}
                <td class="number">${each.waiting}</td><td class="number">${each.running}</td></tr>`,
            )}</tbody></table></div>`
        : html`<p class="empty">No request waits or runs.</p>`}
    </section>`;
}

function rejections(bins) {
  const counts = {};
  for (const bin of bins.values()) {
    for (const [by, each] of Object.entries(bin.rejected)) counts[by] = (counts[by] ?? 0) + each;
  }
  const entries = Object.entries(counts);
  return html`
    <section class="card"><h2>Rejections</h2>
      ${entries.length
        ? html`<table><tbody>${entries.map(
            ([by, each]) => html`<tr><td>${by.replaceAll("_", " ")}</td><td class="number">${count(each)}</td></tr>`,
          )}</tbody></table>
          <p class="note">Of the last quarter of an hour. <a href="#/requests">Requests</a> say why each was.</p>`
        : html`<p class="empty">None in the last quarter of an hour.</p>`}
    </section>`;
}

function planner({ planner: planning }) {
  if (!planning) return nothing;
  return html`
    <section class="card"><h2>Planner</h2>
      <p class="note">${planning.policy}, ${planning.mode}. ${planning.reason ? `Now: ${planning.reason}` : nothing}</p>
      <ul class="plain">
        ${planning.notes.map((note) => html`<li>${note}</li>`)}
        ${planning.decisions.toReversed().map((each) => html`<li>${each.text} <span class="note">${age(each.ago_s)} ago</span></li>`)}
      </ul>
    </section>`;
}

function tiers(overview) {
  if (!overview.tiers.length) return nothing;
  return html`
    <section class="card"><h2>KV tiers</h2>
      <div class="scroll"><table>
        <thead><tr><th>kept by</th><th>in</th><th class="number">blocks</th><th class="number">fetched</th>
          <th class="number">missed</th><th class="number">corrupt</th></tr></thead>
        <tbody>${overview.tiers.map(
          (each) => html`<tr><td>${each.owner}</td>
            <td>${each.tier}${each.on ? nothing : html` <span class="bad">off: ${each.reason}</span>`}</td>
            <td class="number">${count(each.blocks)}${each.capacity_blocks ? ` of ${count(each.capacity_blocks)}` : nothing}</td>
            <td class="number">${count(each.fetched_blocks)}</td><td class="number">${count(each.missed_blocks)}</td>
            <td class="number ${each.corrupt_blocks ? "bad" : ""}">${count(each.corrupt_blocks)}</td></tr>`,
        )}</tbody></table></div>
    </section>`;
}

function recentEvents({ events }) {
  if (!events.length) return nothing;
  return html`
    <section class="card"><h2>Events</h2>
      <ul class="plain">${events
        .slice(-12)
        .toReversed()
        .map((each) => html`<li class=${BAD_EVENTS.includes(each.kind) ? "bad" : ""}>${each.text}
          <span class="note">${age(each.ago_s)} ago</span></li>`)}</ul>
    </section>`;
}
