/** Figures over time, drawn by uPlot. */

import { byId, clock, colour, count, make, percent, rate, seconds, short, swatch } from "./format.js";

/**
 * @typedef {{name: string, label: string, paint: string}} Line
 * @typedef {{key: string, title: string, lines: Line[], format: (value: number | null) => string, most?: number, whole?: boolean}} Chart
 * whole: only whole numbers are ticks.
 */

/** @type {Chart[]} */
const CHARTS = [
  {
    key: "hit_rate", title: "Hit rate, % of prompt tokens", most: 1, format: percent,
    lines: [{ name: "hit_rate", label: "hit rate", paint: "one" }],
  },
  {
    key: "first_token", title: "Time to first token", format: seconds,
    lines: [
      { name: "first_token", label: "mean", paint: "one" },
      { name: "first_token_p95", label: "95th percentile", paint: "two" },
    ],
  },
  {
    key: "queue", title: "Requests", format: count, whole: true,
    lines: [
      { name: "running", label: "running", paint: "one" },
      { name: "waiting", label: "waiting", paint: "two" },
    ],
  },
  {
    key: "pressure", title: "Preemptions and refusals per minute", format: rate, whole: true,
    lines: [
      { name: "preemptions", label: "preemptions", paint: "one" },
      { name: "refused", label: "refused", paint: "two" },
    ],
  },
  {
    key: "speed", title: "Tokens per second", format: short, whole: true,
    lines: [
      { name: "prompt_rate", label: "prompt", paint: "one" },
      { name: "generated_rate", label: "generated", paint: "two" },
    ],
  },
  {
    key: "evicted", title: "Tokens evicted per second", format: short, whole: true,
    lines: [{ name: "evicted", label: "evicted", paint: "one" }],
  },
];

/** Distances of ticks: 1, 2 and 5 times powers of ten. */
const WHOLE = Array.from({ length: 27 }, (_, at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3));

/** @type {Map<string, {plot: any, caption: HTMLElement, chart: Chart}>} */
const plots = new Map();
/** @type {any} */
let latest = null;
let span = "recent";
/** @type {Record<string, number>} seconds */
const SPANS = { recent: 600, long: 7200 };
const HEIGHT = 150;

/** @param {string} choice recent or long */
export function setSpan(choice) {
  span = choice;
  if (latest) show(latest);
}

/** @param {any} series the state's */
export function show(series) {
  latest = series;
  if (!plots.size) build();
  const columns = series[span];
  const times = columns.time ?? [];
  for (const { plot, caption, chart } of plots.values()) {
    plot.setData([times, ...chart.lines.map((line) => columns[line.name] ?? [])]);
    if (plot.cursor.idx === null || plot.cursor.idx === undefined) say(caption, chart, columns);
  }
}

/** Colours and sizes anew. */
export function redraw() {
  for (const { plot } of plots.values()) plot.destroy();
  plots.clear();
  if (latest) show(latest);
}

function build() {
  const box = byId("charts");
  box.replaceChildren();
  for (const chart of CHARTS) {
    const keys = make("span", "keys", ...chart.lines.map((line) => make("span", "", swatch(colour(line.paint)), line.label)));
    const caption = make("p", "caption");
    const holder = make("div", "plot");
    const part = make("div", "chart", make("h3", "", chart.title, ...(chart.lines.length > 1 ? [keys] : [])), caption, holder);
    part.dataset.chart = chart.key;
    box.append(part);
    plots.set(chart.key, { plot: plotOf(chart, caption, holder), caption, chart });
  }
}

/** @param {Chart} chart @param {HTMLElement} caption @param {HTMLElement} holder */
function plotOf(chart, caption, holder) {
  const faint = colour("faint");
  const axis = { stroke: faint, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const options = {
    width: holder.clientWidth,
    height: HEIGHT,
    cursor: { y: false, drag: { x: false, y: false } },
    scales: {
      x: { time: true, range: (/** @type {any} */ _plot, /** @type {number | null} */ first, /** @type {number | null} */ end) => ends(first, end) },
      y: { range: (/** @type {any} */ _plot, /** @type {number} */ _low, /** @type {number} */ high) => [0, chart.most ?? roof(high)] },
    },
    axes: [
      { ...axis, size: 26, space: 70, values: (/** @type {any} */ _plot, /** @type {number[]} */ at) => at.map((time) => clock(time).slice(0, 5)), incrs: [60, 120, 300, 600, 1200, 1800, 3600] },
      { ...axis, size: 62, space: 34, values: (/** @type {any} */ _plot, /** @type {number[]} */ at) => at.map(chart.format), ...(chart.whole ? { incrs: WHOLE } : {}) },
    ],
    series: [
      {},
      ...chart.lines.map((line) => ({
        label: line.label, stroke: colour(line.paint), width: 2, spanGaps: true, points: { size: 5 },
      })),
    ],
    hooks: { setCursor: [(/** @type {any} */ plot) => say(caption, chart, latest[span], plot.cursor.idx)] },
  };
  return new uPlot(options, [[], ...chart.lines.map(() => [])], holder);
}

/** The time that is drawn: that chosen, or less while the server is young. @param {number | null} first @param {number | null} end */
function ends(first, end) {
  const last = end ?? Date.now() / 1000;
  return [Math.max(last - SPANS[span], Math.min(first ?? last, last - SPANS[span] / 4)), last];
}

/** The end of an axis that starts with 0. @param {number | null} high */
function roof(high) {
  return high === null || !(high > 0) ? 1 : 1.1 * high;
}

/** What a chart shows in words: at the cursor, or now and over the time shown. @param {HTMLElement} caption @param {Chart} chart @param {any} columns @param {number | null} [index] */
function say(caption, chart, columns, index = null) {
  const times = columns.time ?? [];
  if (!times.length) {
    caption.textContent = `no figure yet: the first comes after ${span === "long" ? "a minute" : "five seconds"}`;
    return;
  }
  const known = index !== null && index !== undefined;
  const texts = chart.lines.map((line) => {
    const values = columns[line.name];
    const name = chart.lines.length > 1 ? `${line.label} ` : "";
    if (known) return `${name}${chart.format(values[index])}`;
    const there = values.filter((/** @type {number | null} */ value) => value !== null);
    if (!there.length) return `${name}none`;
    const range = `${chart.format(Math.min(...there))} to ${chart.format(Math.max(...there))}`;
    return `${name}${chart.format(there[there.length - 1])} now, ${range}`;
  });
  caption.textContent = `${known ? `${clock(times[index])}: ` : ""}${texts.join("; ")}`;
}
