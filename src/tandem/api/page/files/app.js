// The page: what is shown follows from one state, drawn anew whenever it changes.
import { html, nothing, render } from "./lit-html.js";
import { clusterView } from "./cluster.js";
import { requestsView, detailView } from "./requests.js";
import { keepKey, read, readKey, send } from "./server.js";
import { tryView, Talk } from "./try.js";

const POLL_MS = 2000;
const MOST_BINS = 180;
const LATE_BINS = 2;
const TABS = { try: "Try", cluster: "Cluster", requests: "Requests" };

const state = {
  route: [],
  models: [],
  // The latest answer of /tandem/overview, its bins of time by number, and the one before it.
  seen: null,
  before: null,
  bins: new Map(),
  lines: null,
  details: null,
  worker: "",
  tried: null,
  planned: null,
  problem: "",
  said: "",
  hasKey: Boolean(readKey()),
  talk: new Talk(draw),
};

let drawing = false;
export function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    render(page(), document.getElementById("app"));
  });
}

function page() {
  const [tab, ...rest] = state.route;
  return html`
    <a class="skip" href="#main" @click=${skip}>To the content</a>
    <header>
      <h1>Tandem</h1>
      <nav aria-label="Parts of the page">
        ${Object.entries(TABS).map(
          ([name, title]) => html`
            <a href="#/${name}" aria-current=${name === tab ? "page" : "false"}>${title}</a>`,
        )}
      </nav>
      <span class="model">${state.models[0] ?? nothing}</span>
      <div class="tools">
        <button @click=${changeTheme} title="Light or dark">Theme</button>
        <button @click=${askKey}>${state.hasKey ? "Key ✓" : "Key"}</button>
      </div>
    </header>
    <main id="main" tabindex="-1">
      ${state.problem ? html`<p class="problem" role="alert">${state.problem}</p>` : nothing}
      ${tab === "try" ? tryView(state.talk, state.models) : nothing}
      ${tab === "cluster" ? clusterView(state, actions) : nothing}
      ${tab === "requests" && !rest.length ? requestsView(state.lines) : nothing}
      ${tab === "requests" && rest.length ? detailView(rest.join("/"), state.details) : nothing}
    </main>
    <p class="unseen" role="status">${state.said}</p>
    <dialog id="key" aria-labelledby="key-title">
      <form method="dialog" @submit=${takeKey}>
        <h2 id="key-title">Key</h2>
        <p class="note">An API key, or an operator's, who may change workers and sees whose requests
          are whose. It stays in this tab.</p>
        <label>Key<input name="key" type="password" autocomplete="off"></label>
        <div class="row"><button class="main">Use it</button></div>
      </form>
    </dialog>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function changeTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("tandem-theme", root.dataset.theme);
  draw();
}

const askKey = () => document.getElementById("key").showModal();

function takeKey(event) {
  const key = new FormData(event.target).get("key").trim();
  event.target.reset();
  keepKey(key);
  state.hasKey = Boolean(key);
  Object.assign(state, { seen: null, before: null, lines: null, details: null, problem: "" });
  state.bins.clear();
  readModels();
  look();
}

// What views may have done.
const actions = {
  choose(worker) {
    state.worker = state.worker === worker ? "" : worker;
    draw();
  },
  said(text) {
    state.said = text;
    look();
  },
  async applies(settings, seen) {
    try {
      const body = seen == null ? { settings } : { settings, seen };
      state.planned = await send("tandem/apply", body);
    } catch (error) {
      state.planned = { problem: error.message };
    }
    draw();
  },
  forgetsPlan() {
    state.planned = null;
    draw();
  },
  async tries(otherwise) {
    state.tried = { asking: true };
    draw();
    try {
      state.tried = { runs: (await send("tandem/what-if", otherwise)).data };
    } catch (error) {
      state.tried = { problem: error.message };
    }
    draw();
  },
};

async function readModels() {
  try {
    state.models = (await read("v1/models")).data.map((model) => model.id);
  } catch (error) {
    fail(error);
  }
  draw();
}

function fail(error) {
  if (error instanceof TypeError) state.problem = "The server does not answer.";
  else if (error.status === 401) state.problem = "This server wants an API key: use “Key” above.";
  else state.problem = error.message;
}

async function look() {
  const [tab, ...rest] = state.route;
  try {
    if (tab === "cluster") await lookAtCluster();
    if (tab === "requests" && rest.length) {
      state.details = (await read(`tandem/requests/${rest.map(encodeURIComponent).join("/")}`)).data;
    } else if (tab === "requests") {
      state.lines = (await read("tandem/requests?limit=200")).data;
    }
    if (tab !== "try") state.problem = "";
  } catch (error) {
    fail(error);
  }
  draw();
}

async function lookAtCluster() {
  // What is told late, by a gateway that answers late, counts in a bin that has ended.
  const first = Math.max(0, ...state.bins.keys()) - LATE_BINS;
  const seen = await read(`tandem/overview?since=${Math.max(0, first)}`);
  const { overview } = seen;
  for (const bin of overview.bins) state.bins.set(bin.number, bin);
  for (const number of state.bins.keys()) {
    if (number <= overview.current_bin - MOST_BINS) state.bins.delete(number);
  }
  seen.at = performance.now();
  state.before = state.seen?.overview.server === overview.server ? state.seen : null;
  state.seen = seen;
}

function go() {
  const route = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  state.route = route[0] in TABS ? route : ["try"];
  Object.assign(state, { details: null, problem: "" });
  document.title = `${TABS[state.route[0]]} · Tandem`;
  draw();
  look();
}

// A page that nobody sees asks nothing.
let timer = 0;
function watch() {
  clearInterval(timer);
  if (document.visibilityState !== "visible") return;
  timer = setInterval(() => state.route[0] !== "try" && look(), POLL_MS);
  look();
}

const theme = localStorage.getItem("tandem-theme");
if (theme) document.documentElement.dataset.theme = theme;
addEventListener("hashchange", go);
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.addEventListener("visibilitychange", watch);
document.getElementById("app").replaceChildren();
readModels();
go();
watch();
