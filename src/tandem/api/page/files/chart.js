// <time-chart>: lines over time, drawn by uPlot; what they say is in words for those who cannot see them.
const COLOURS = ["--prefill", "--decode", "--bad", "--good"];

class TimeChart extends HTMLElement {
  #plot = null;
  #shape = "";
  #data = null;

  // { label, times: [s], lines: [{ name, values }], format }
  set data(data) {
    this.#data = data;
    if (this.isConnected) this.#show();
  }

  connectedCallback() {
    this.classList.add("chart");
    this.setAttribute("role", "img");
    this.#show();
    this.sizes = new ResizeObserver(() => this.#plot?.setSize(this.#size()));
    this.sizes.observe(this);
  }

  disconnectedCallback() {
    this.sizes.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
    this.#shape = "";
  }

  #size() {
    return { width: Math.max(120, this.clientWidth), height: Math.max(80, this.clientHeight - 28) };
  }

  #show() {
    const data = this.#data;
    if (!data) return;
    this.setAttribute("aria-label", inWords(data));
    const columns = [data.times, ...data.lines.map((line) => line.values)];
    const colour = (name) => resolved(this, name);
    const soft = colour("--soft");
    const shape = [soft, data.label, ...data.lines.map((line) => line.name)].join();
    if (this.#plot && shape === this.#shape) {
      this.#plot.setData(columns);
      return;
    }
    this.#plot?.destroy();
    this.#shape = shape;
    const axis = {
      stroke: soft,
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const options = {
      ...this.#size(),
      series: [
        { value: (_, at) => (at == null ? "" : new Date(at * 1000).toLocaleTimeString()) },
        ...data.lines.map((line, index) => ({
          label: line.name,
          stroke: colour(line.colour ?? COLOURS[index]),
          width: line.dash ? 1 : 1.6,
          dash: line.dash,
          points: { show: !line.dash, size: 4 },
          spanGaps: Boolean(line.dash),
          value: (_, value) => (value == null ? "–" : data.format(value)),
        })),
      ],
      axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 62, values: (_, ticks) => ticks.map(data.format) }],
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      legend: { live: true },
      cursor: { y: false, points: { size: 5 } },
    };
    this.#plot = new uPlot(options, columns, this);
  }
}

const clock = (at) =>
  new Date(at * 1000).toLocaleTimeString([], { hourCycle: "h23" });

// A canvas knows no light-dark().
function resolved(element, name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

function inWords({ label, lines, format }) {
  const said = lines.map(({ name, values }) => {
    const last = values.findLast((value) => value != null);
    return `${name} ${last == null ? "none" : format(last)}`;
  });
  return `${label}, latest: ${said.join(", ")}`;
}

customElements.define("time-chart", TimeChart);
