// Numbers as people read them.
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => (value == null ? "–" : whole.format(value));
export const rate = (value) => number.format(value);
export const share = (value) => (value == null ? "–" : `${Math.round(value * 100)} %`);

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.001) return `${whole.format(value * 1e6)} µs`;
  if (value < 0.1) return `${number.format(value * 1e3)} ms`;
  if (value < 1) return `${whole.format(value * 1e3)} ms`;
  return `${number.format(value)} s`;
}

export function age(value) {
  if (value < 90) return `${whole.format(value)} s`;
  if (value < 5400) return `${whole.format(value / 60)} min`;
  return value < 129600 ? `${number.format(value / 3600)} h` : `${number.format(value / 86400)} days`;
}

export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${number.format(value)} ${unit}`;
    value /= 1024;
  }
  return `${number.format(value)} TiB`;
}
