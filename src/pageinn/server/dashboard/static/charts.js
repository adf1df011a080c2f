/** Figures over time, drawn by uPlot. */

import { byId, clock, colour, count, make, percent, rate, seconds, short, swatch } from "./format.js";

/**
 * @typedef {{key: string, title: string, lines: Record<string, string>, format: (value: number | null) => string, most?: number, whole?: boolean}} Chart
 * lines: labels by the names of columns. whole: only whole numbers are ticks.
 */

/** @type {Chart[]} */
const CHARTS = [
  { key: "hit_rate", title: "Hit rate, % of prompt tokens", most: 1, format: percent, lines: { hit_rate: "hit rate" } },
  {
    key: "first_token", title: "Time to first token", format: seconds,
    lines: { first_token: "mean", first_token_p95: "95th percentile" },
  },
  { key: "queue", title: "Requests", format: count, whole: true, lines: { running: "running", waiting: "waiting" } },
  {
    key: "pressure", title: "Preemptions and refusals per minute", format: rate, whole: true,
    lines: { preemptions: "preemptions", refused: "refused" },
  },
  {
    key: "speed", title: "Tokens per second", format: short, whole: true,
    lines: { prompt_rate: "prompt", generated_rate: "generated" },
  },
  { key: "evicted", title: "Tokens evicted per second", format: short, whole: true, lines: { evicted: "evicted" } },
];

/** Colours of a chart's lines, in their order. */
const PAINTS = ["one", "two"];

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
    plot.setData([times, ...Object.keys(chart.lines).map((name) => columns[name] ?? [])]);
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
    const labels = Object.values(chart.lines);
    const keys = make("span", "keys", ...labels.map((label, at) => make("span", "", swatch(colour(PAINTS[at])), label)));
    const caption = make("p", "caption");
    const holder = make("div", "plot");
    const part = make("div", "chart", make("h3", "", chart.title, ...(labels.length > 1 ? [keys] : [])), caption, holder);
    part.dataset.chart = chart.key;
    box.append(part);
    plots.set(chart.key, { plot: plotOf(chart, caption, holder), caption, chart });
  }
}

/** @param {Chart} chart @param {HTMLElement} caption @param {HTMLElement} holder */
function plotOf(chart, caption, holder) {
  const faint = colour("faint");
  const labels = Object.values(chart.lines);
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
      ...labels.map((label, at) => ({ label, stroke: colour(PAINTS[at]), width: 2, spanGaps: true, points: { size: 5 } })),
    ],
    hooks: { setCursor: [(/** @type {any} */ plot) => say(caption, chart, latest[span], plot.cursor.idx)] },
  };
  return new uPlot(options, [[], ...labels.map(() => [])], holder);
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
  const lines = Object.entries(chart.lines);
  const texts = lines.map(([column, label]) => {
    const values = columns[column];
    const name = lines.length > 1 ? `${label} ` : "";
    if (known) return `${name}${chart.format(values[index])}`;
    const there = values.filter((/** @type {number | null} */ value) => value !== null);
    if (!there.length) return `${name}none`;
    const range = `${chart.format(Math.min(...there))} to ${chart.format(Math.max(...there))}`;
    return `${name}${chart.format(there[there.length - 1])} now, ${range}`;
  });
  caption.textContent = `${known ? `${clock(times[index])}: ` : ""}${texts.join("; ")}`;
}
