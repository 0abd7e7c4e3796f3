// The latest requests, and one in detail: where its time went, and why it went where it did.
import { html, nothing } from "./lit-html.js";
import { age, count, seconds, share } from "./words.js";

export function requestsView(lines) {
  if (!lines) return html`<p class="empty">Looking…</p>`;
  if (!lines.length) return html`<p class="empty">No request is remembered. <a href="#/try">Try</a> one.</p>`;
  const named = lines.some((each) => each.tenant || each.service_class);
  return html`
    <section class="card"><h2>Requests</h2>
      <div class="scroll"><table>
        <thead><tr><th>request</th><th>came</th>${named ? html`<th>class</th><th>tenant</th>` : nothing}
          <th class="number">prompt</th><th class="number">cached</th><th class="number">answer</th>
          <th class="number">TTFT</th><th class="number">TPOT</th><th>end</th></tr></thead>
        <tbody>${lines.map(
          (each) => html`<tr>
            <td><a href=${link(each.request_id)}>${shortened(each.request_id)}</a></td>
            <td>${age(each.ago_s)} ago</td>
            ${named ? html`<td>${each.service_class}</td><td>${each.tenant}</td>` : nothing}
            <td class="number">${count(each.prompt_tokens)}</td>
            <td class="number">${share(each.prompt_tokens ? each.cached_tokens / each.prompt_tokens : 0)}</td>
            <td class="number">${count(each.output_tokens)}</td>
            <td class="number">${seconds(each.ttft_s)}</td><td class="number">${seconds(each.tpot_s)}</td>
            <td class="text ${each.ending === "failed" || each.ending === "rejected" ? "bad" : ""}">${ending(each)}</td></tr>`,
        )}</tbody></table></div>
    </section>`;
}

export const link = (id) => `#/requests/${id.split("/").map(encodeURIComponent).join("/")}`;

// The gateway and its start stand before a request's own id.
const shortened = (id) => id.slice(id.lastIndexOf("/") + 1);

function ending({ ending: end, reason }) {
  if (!end) return "runs";
  return end === "finished" ? reason : `${end}: ${reason}`;
}

export function detailView(name, found) {
  if (!found) return html`<p class="empty">Looking for ${name}…</p>`;
  return found.map(
    (request) => html`
      <section class="card">
        <h2>${shortened(request.line.request_id)}</h2>
        ${head(request)} ${spans(request)}
      </section>
      ${candidates(request)}
      <section class="card"><h2>What happened</h2>${events(request)}</section>`,
  );
}

function head({ line, max_tokens: most }) {
  const owner = [
    line.service_class && `class ${line.service_class}`,
    line.tenant && `tenant ${line.tenant}`,
    line.session && `session ${line.session}`,
  ].filter(Boolean);
  return html`<p class="note">
    ${count(line.prompt_tokens)} prompt tokens, ${count(line.cached_tokens)} of them cached;
    ${count(line.output_tokens)} of at most ${count(most)} output tokens; came ${age(line.ago_s)} ago.
    ${owner.join(", ")}
    <br><span class=${line.ending === "finished" || !line.ending ? "" : "bad"}>${ending(line)}</span></p>`;
}

// Phases by their instants: until a worker has it, until the first token, until the last.
function phases({ line, events: happened, spans: parts }) {
  if (parts.some((part) => part.name === "prefill")) {
    const found = parts.map(({ name, worker, from_s: from, to_s: to }) => ({ name, worker, from, to, colour: name }));
    return { end: line.total_s, found };
  }
  const end = line.total_s ?? Math.max(line.ttft_s ?? 0, ...happened.map((each) => each.after_s), line.ago_s);
  const begun = happened.find((each) => each.kind === "routing" || each.kind === "schedule")?.after_s;
  const found = [];
  const until = begun ?? line.ttft_s ?? end;
  found.push({ name: "queue", from: 0, to: until, colour: "" });
  if (begun != null) {
    found.push({ name: "prefill", from: begun, to: line.ttft_s ?? end, colour: "prefill" });
  }
  if (line.ttft_s != null) {
    found.push({ name: "decode", from: line.ttft_s, to: end, colour: "decode" });
  }
  return { end, found };
}

function predicted({ events: happened }) {
  const routing = happened.findLast((each) => each.kind === "routing");
  return routing ? { at: routing.after_s, ...routing.figures } : null;
}

function spans(request) {
  const { end, found } = phases(request);
  const said = predicted(request);
  const { line } = request;
  const mark = said && end ? Math.min(1, (said.at + said.ttft_s) / end) : null;
  return html`
    <dl class="spans">
      ${found.map(
        (each) => html`
          <dt>${each.name}${each.worker ? html` <span class="note">${each.worker}</span>` : nothing}</dt>
          <dd class="bar ${each.colour}">
            <i .style=${`left:${(each.from / (end || 1)) * 100}%;width:${((each.to - each.from) / (end || 1)) * 100}%`}></i>
            ${mark != null && each.name === "prefill"
              ? html`<u .style=${`left:${mark * 100}%`} title="first token as predicted"></u>`
              : nothing}
          </dd>
          <dd>${seconds(each.to - each.from)}</dd>`,
      )}
    </dl>
    ${said
      ? html`<div class="scroll"><table>
          <thead><tr><th></th><th class="number">predicted</th><th class="number">measured</th></tr></thead>
          <tbody>
            <tr><td>first token, from the decision</td><td class="number">${seconds(said.ttft_s)}</td>
              <td class="number">${seconds(line.ttft_s == null ? null : line.ttft_s - said.at)}</td></tr>
            <tr><td>each token after it</td><td class="number">${seconds(said.tpot_s)}</td>
              <td class="number">${seconds(line.tpot_s)}</td></tr>
          </tbody></table></div>`
      : nothing}`;
}

// Figures such as "decode decode-1 ttft_s", by phase and worker.
function candidates({ events: happened }) {
  const routing = happened.findLast((each) => each.kind === "routing");
  if (!routing) return nothing;
  const rows = new Map();
  for (const [name, value] of Object.entries(routing.figures)) {
    const [phase, worker, figure] = name.split(" ");
    if (!figure) continue;
    const row = rows.get(`${phase} ${worker}`) ?? { phase, worker };
    row[figure] = value;
    rows.set(`${phase} ${worker}`, row);
  }
  const chosen = (row) => routing.text.includes(`${row.phase} on ${row.worker}`);
  return html`
    <section class="card"><h2>Where it could have gone</h2>
      <div class="scroll"><table>
        <thead><tr><th>phase</th><th>worker</th><th class="number">TTFT</th><th class="number">TPOT</th>
          <th class="number">score</th><th></th></tr></thead>
        <tbody>${[...rows.values()].map(
          (row) => html`<tr><td class=${row.phase}>${row.phase}</td><td>${row.worker}</td>
            <td class="number">${seconds(row.ttft_s)}</td><td class="number">${seconds(row.tpot_s)}</td>
            <td class="number">${typeof row.score === "number" ? row.score.toPrecision(3) : "–"}</td>
            <td>${chosen(row) ? "chosen" : nothing} ${row.corrected ?? nothing}</td></tr>`,
        )}</tbody></table></div>
      <p class="note">As predicted when it was decided. The lowest score is chosen.</p>
    </section>`;
}

function events({ line, events: happened }) {
  const all = [
    { after_s: 0, kind: "", text: "arrived" },
    ...happened,
    ...(line.ttft_s == null ? [] : [{ after_s: line.ttft_s, kind: "", text: "first token" }]),
    ...(line.total_s == null ? [] : [{ after_s: line.total_s, kind: "", text: ending(line) }]),
  ].sort((one, other) => one.after_s - other.after_s);
  return html`
    <div class="scroll"><table><tbody>${all.map(
      (each) => html`<tr><td class="number">${seconds(each.after_s)}</td><td>${each.kind}</td>
        <td class="text">${each.text}</td></tr>`,
    )}</tbody></table></div>`;
}
