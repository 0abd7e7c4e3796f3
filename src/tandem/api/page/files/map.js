// The workers as a picture: those that prefill on the left, those that decode on the right, and the
// KV that moves between them.
import { html, nothing, svg } from "./lit-html.js";
import { bytes, rate } from "./words.js";

const HIGH = 42;
const GAP = 8;
const EDGE = 2;
const NARROW = 190;
const SHORT = new Intl.NumberFormat("en", { notation: "compact" });

export function workersMap(overview, seen, before, choose, chosen) {
  const width = Math.min(1180, Math.max(300, innerWidth - 70));
  const columns = { prefill: [], both: [], decode: [] };
  for (const worker of overview.workers) columns[worker.role].push(worker);
  const used = Object.entries(columns).filter(([, workers]) => workers.length);
  if (!used.length) return html`<p class="empty">No worker is here.</p>`;
  const wide = Math.min(230, (width - 60 * (used.length - 1)) / used.length);
  const places = new Map();
  used.forEach(([, workers], index) => {
    const left = used.length === 1 ? 0 : (index * (width - wide)) / (used.length - 1);
    workers.forEach((worker, row) => places.set(worker.worker, { left, top: EDGE + row * (HIGH + GAP) }));
  });
  // One column alone flows over the whole width.
  let rows = Math.max(...used.map(([, workers]) => workers.length));
  if (used.length === 1) {
    const across = Math.max(1, Math.floor((width + GAP) / (wide + GAP)));
    used[0][1].forEach((worker, index) =>
      places.set(worker.worker, {
        left: (index % across) * (wide + GAP),
        top: EDGE + Math.floor(index / across) * (HIGH + GAP),
      }),
    );
    rows = Math.ceil(rows / across);
  }
  const elapsed = before ? (seen.at - before.at) / 1000 : 0;
  const earlier = new Map(before?.overview.workers.map((each) => [each.worker, each]));
  const since = (worker, of) => {
    const old = earlier.get(worker.worker);
    return old && elapsed ? Math.max(0, of(worker) - of(old)) / elapsed : 0;
  };
  const high = rows * (HIGH + GAP) + EDGE;
  return html`
    <div class="map">
      <svg viewBox="0 0 ${width} ${high}" height=${high} role="group"
        aria-label="${overview.workers.length} workers and the KV that moves between them">
        ${overview.workers.flatMap((target) =>
          Object.entries(target.read_from).map(([source, moved]) =>
            flow(places, wide, source, target, moved, since(target, (each) => each.read_from[source] ?? 0)),
          ),
        )}
        ${overview.workers.map((worker) =>
          box(worker, places.get(worker.worker), wide, since(worker, (each) => each.output_tokens), choose, chosen),
        )}
      </svg>
      ${used.length > 1
        ? html`<p class="note"><span class="key prefill"></span> prefill
            <span class="key decode"></span> decode
            ${columns.both.length ? html`<span class="key both"></span> both` : nothing}
            · lines: KV that was read, moving while it is.</p>`
        : nothing}
    </div>`;
}

function flow(places, wide, source, target, moved, perSecond) {
  const from = places.get(source);
  const to = places.get(target.worker);
  if (!from || !to || !moved) return nothing;
  const x1 = from.left + (from.left <= to.left ? wide : 0);
  const x2 = to.left + (from.left <= to.left ? 0 : wide);
  const y1 = from.top + HIGH / 2;
  const y2 = to.top + HIGH / 2;
  const middle = from.left === to.left ? x1 + 40 : (x1 + x2) / 2;
  const width = perSecond ? Math.min(9, 1.5 + Math.log2(1 + perSecond / 65536)) : 1;
  const text = `${source} to ${target.worker}: ${bytes(moved)} of KV${perSecond ? `, ${bytes(perSecond)}/s now` : ""}`;
  return svg`<path class="flow ${perSecond ? "now" : ""}" stroke-width=${width}
    d="M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}"><title>${text}</title></path>`;
}

function box(worker, { left, top }, wide, tokensPerSecond, choose, chosen) {
  const used = worker.used_blocks / worker.total_blocks;
  const track = wide - 16;
  const state = worker.state === "ready" ? "" : ` · ${worker.state}`;
  const press = (event) => {
    event.preventDefault();
    choose(worker.worker);
  };
  // Both texts in one line fit a narrow box only where they are short.
  const narrow = wide < NARROW;
  const work = narrow && !worker.waiting ? `${worker.running} run` : `${worker.running} run, ${worker.waiting} wait`;
  const pace = narrow ? `${SHORT.format(tokensPerSecond)}/s` : `${rate(tokensPerSecond)} tok/s`;
  const label = `${worker.worker}, ${worker.role}${state}, ${worker.running} running, ${worker.waiting} waiting, KV ${Math.round(used * 100)} %`;
  return svg`
    <a href="#" @click=${press} aria-label=${label} aria-pressed=${chosen === worker.worker} role="button"
       class=${worker.role} transform="translate(${left} ${top})">
      <title>${label}</title>
      <rect class="box" width=${wide} height=${HIGH} rx="6"></rect>
      <rect class="fill" width="4" height=${HIGH} rx="2"></rect>
      <text x="10" y="16">${worker.worker}${state}</text>
      <text class="small" x=${wide - 8} y="30" text-anchor="end">${pace}</text>
      <text class="small" x="10" y="30">${work}</text>
      <rect class="track" x="10" y="34" width=${track} height="4" rx="2"></rect>
      <rect class="fill" x="10" y="34" width=${Math.max(0, used * track)} height="4" rx="2"></rect>
    </a>`;
}
