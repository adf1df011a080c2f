/** The prefix tree as an icicle: from the top down, as wide as the blocks below. */

import { byId, colour, count, make, percent, rgb, some, swatch } from "./format.js";

const ROW = 26;
/** Levels that are drawn below the one that was chosen. */
const LEVELS = 12;
const SVG = "http://www.w3.org/2000/svg";
const STATES = {
  kept: "kept for reuse", pinned: "kept, pinned or retained", in_use: "in use by one request",
  shared: "in use by several requests", host: "in host memory",
};
const MARKS = { in_use: "in-use", shared: "shared", pinned: "pinned" };

/** @type {any} */
let latest = null;
/** The id of the prefix that was chosen; null for all of the tree. @type {string | null} */
let chosen = null;
/** Whether the first button is held down on the tree: what it was pressed on must still be there when it is let go. */
let pressed = false;

/** @param {any} memory the state's */
export function show(memory) {
  latest = memory.tree;
  redraw();
}

export function redraw() {
  if (latest && !pressed) draw();
}

function draw() {
  const { nodes, total, blocks } = latest;
  const box = byId("tree-box");
  if (chosen !== null && !nodes.some((/** @type {any} */ node) => node.id === chosen)) chosen = null;
  byId("tree-up").hidden = chosen === null;
  const shown = nodes.length < total ? `; the ${some(nodes.length, "largest is", "largest are")} drawn` : "";
  byId("tree-note").textContent = nodes.length
    ? `${some(total, "prefix", "prefixes")}, ${some(blocks, "block")}${shown}. As wide as the blocks in and below a prefix; a bare number is its hits.`
    : "";
  if (!nodes.length) {
    box.replaceChildren(make("p", "empty", "Nothing is in the tree: no prompt has filled a block yet, or the cache was reset."));
    byId("tree-legend").replaceChildren();
    return;
  }
  const hottest = nodes.reduce((/** @type {number} */ most, /** @type {any} */ node) => Math.max(most, node.hits), 1);
  const shade = scale(hottest);
  legend(shade, hottest);
  const width = box.clientWidth;
  const root = layout(nodes, width);
  const depth = Math.min(LEVELS, root.height + (chosen === null ? 0 : 1));
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${depth * ROW}`);
  svg.setAttribute("height", String(depth * ROW));
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", "prefix tree");
  for (const place of root.descendants()) {
    const level = place.depth - (chosen === null ? 1 : 0);
    if (level >= 0 && level < LEVELS && place.x1 - place.x0 >= 1) svg.append(bar(place, level, shade));
  }
  const focused = /** @type {any} */ (document.activeElement)?.dataset?.node;
  box.replaceChildren(svg);
  if (focused) /** @type {any} */ (box.querySelector(`[data-node="${focused}"]`))?.focus();
}

/** @param {any[]} nodes @param {number} width */
function layout(nodes, width) {
  const top = { id: "", children: /** @type {any[]} */ ([]), own: 0, node: null };
  const made = nodes.map((node) => ({ id: node.id, children: /** @type {any[]} */ ([]), own: node.branch, node }));
  nodes.forEach((node, index) => {
    const above = node.parent < 0 ? top : made[node.parent];
    above.children.push(made[index]);
    above.own -= node.branch;
  });
  top.own = 0;
  // What is not shown below a prefix counts as its own width, so that widths are right.
  const from = chosen === null ? top : made.find((each) => each.id === chosen);
  const root = d3.hierarchy(from).sum((/** @type {any} */ each) => each.own);
  root.sort((/** @type {any} */ one, /** @type {any} */ other) => other.value - one.value);
  return d3.partition().size([width, 1])(root);
}

/** From hits to colours, even in the logarithm. @param {number} hottest */
function scale(hottest) {
  const low = rgb(colour("hits-low"));
  const high = rgb(colour("hits-high"));
  return (/** @type {number} */ hits) => {
    const part = Math.log1p(hits) / Math.log1p(hottest);
    return low.map((value, index) => Math.round(value + part * (high[index] - value)));
  };
}

/** Black or white, whichever can be read on a colour. @param {number[]} paint */
function ink(paint) {
  const [red, green, blue] = paint.map((value) => (value / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#000000" : "#ffffff";
}

/** @param {any} place @param {number} level @param {(hits: number) => number[]} shade */
function bar(place, level, shade) {
  const node = place.data.node;
  const width = place.x1 - place.x0;
  const paint = shade(node.hits);
  const group = document.createElementNS(SVG, "g");
  group.dataset.node = node.id;
  group.dataset.hits = String(node.hits);
  group.setAttribute("tabindex", "0");
  group.setAttribute("role", "button");
  group.setAttribute("aria-label", describe(node));
  group.append(rect("node", place.x0, level * ROW, width, ROW, `rgb(${paint.join(" ")})`));
  const mark = MARKS[/** @type {keyof typeof MARKS} */ (node.state)];
  if (mark) group.append(rect("mark", place.x0 + 0.5, level * ROW + ROW - 5, Math.max(1, width - 1), 4, colour(mark)));
  const label = fit(node, width - 10);
  if (label) {
    const text = document.createElementNS(SVG, "text");
    text.setAttribute("x", String(place.x0 + 5));
    text.setAttribute("y", String(level * ROW + 16));
    text.setAttribute("fill", ink(paint));
    text.textContent = label;
    group.append(text);
  }
  const tell = () => hint(node);
  group.addEventListener("pointerenter", tell);
  group.addEventListener("focus", tell);
  group.addEventListener("click", () => choose(node));
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(node); }
  });
  return group;
}

/** @param {string} name @param {number} x @param {number} y @param {number} width @param {number} height @param {string} fill */
function rect(name, x, y, width, height, fill) {
  const shape = document.createElementNS(SVG, "rect");
  shape.setAttribute("class", name);
  for (const [key, value] of Object.entries({ x, y, width, height })) shape.setAttribute(key, value.toFixed(2));
  shape.setAttribute("fill", fill);
  return shape;
}

/** As much of a label as there is room for; a character takes some seven pixels. @param {any} node @param {number} width */
function fit(node, width) {
  const hits = some(node.hits, "hit");
  const begins = node.text ? `${hits} · ${node.text.trim().replaceAll(/\s+/g, " ")}` : "";
  if (begins && width > 120) return begins.slice(0, Math.floor(width / 7));
  for (const label of [`${some(node.tokens, "token")} · ${hits} · #${node.id.slice(0, 6)}`, `${count(node.tokens)} tok · ${hits}`, hits, count(node.hits)]) {
    if (7 * label.length <= width) return label;
  }
  return "";
}

/** @param {any} node */
function describe(node) {
  const end = node.start + node.tokens;
  const hidden = node.hidden ? `, ${some(node.hidden, "smaller prefix", "smaller prefixes")} below not drawn` : "";
  return `tokens ${count(node.start)} to ${count(end)} of a prompt, found ${some(node.hits, "time")}, ` +
    `${some(node.blocks, "block")} (${some(node.branch, "block")} with all below), ` +
    `${STATES[/** @type {keyof typeof STATES} */ (node.state)]}, tenant ${node.tenant}, #${node.id}${hidden}` + (node.text ? `, begins with “${node.text.trim()}”` : "");
}

/** @param {any} node */
function hint(node) {
  const share = percent(node.branch / latest.blocks);
  byId("tree-hint").replaceChildren(make("b", "", `${share} of the tree`), `: ${describe(node)}.`);
}

/** @param {any} node */
function choose(node) {
  chosen = chosen === node.id ? null : node.id;
  draw();
  hint(node);
}

/** @param {(hits: number) => number[]} shade @param {number} hottest */
function legend(shade, hottest) {
  const list = byId("tree-legend");
  list.replaceChildren();
  const middle = Math.round(Math.expm1(Math.log1p(hottest) / 2));
  for (const hits of [...new Set([0, middle, hottest])]) {
    list.append(make("li", "", swatch(`rgb(${shade(hits).join(" ")})`), some(hits, "hit")));
  }
  for (const [state, paint] of Object.entries(MARKS)) {
    list.append(make("li", "", swatch(colour(paint)), `stripe: ${STATES[/** @type {keyof typeof STATES} */ (state)]}`));
  }
}

/** A click comes behind the event that ends the press, so what was held back waits for it. */
function letGo() {
  if (!pressed) return;
  pressed = false;
  setTimeout(redraw);
}

export function start() {
  byId("tree-box").addEventListener("pointerdown", (event) => { if (event.button === 0) pressed = true; });
  // Where a menu opens or another window comes up, it is told of the button's release, and not the page.
  for (const end of ["pointerup", "pointercancel", "contextmenu", "blur"]) window.addEventListener(end, letGo);
  byId("tree-up").addEventListener("click", () => { chosen = null; draw(); });
}
