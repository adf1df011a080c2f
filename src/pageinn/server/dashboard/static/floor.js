/** The pool as a floor plan on a canvas: one cell for each block, row by row. */

import { byId, colour, count, make, rgb, some, swatch } from "./format.js";

/** In the order of their numbers in a block's byte. */
const STATES = [
  { name: "free", label: "free", colour: "free" },
  { name: "kept", label: "kept for reuse", colour: "kept" },
  { name: "pinned", label: "kept, pinned or retained", colour: "pinned" },
  { name: "in_use", label: "in use by one request", colour: "in-use" },
  { name: "shared", label: "in use by several", colour: "shared" },
];
/** Okabe and Ito's, and then others that are lighter or darker. */
const TENANTS = [
  "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7a6fd0", "#8c8c8c", "#5d3a00",
];
/** Height of the plan in pixels of the style sheet, if it is not to be taller than a phone's screen. */
const HEIGHT = 420;

/** @typedef {{cells: Uint8Array, columns: number, cell: number}} Drawn cell: its side in the style sheet's pixels */

/** @type {Drawn | null} */
let drawn = null;
/** @type {any} */
let latest = null;
let by = "state";

/** @param {string} choice state or tenant */
export function colourBy(choice) {
  by = choice;
  if (latest) show(latest);
}

/** @param {any} memory the state's */
export function show(memory) {
  latest = memory;
  const text = atob(memory.cells);
  const cells = new Uint8Array(text.length);
  for (let block = 0; block < text.length; block += 1) cells[block] = text.charCodeAt(block);
  legend(memory, cells);
  draw(cells);
}

export function redraw() {
  if (latest) show(latest);
}

/** The tenant's colour. @param {number} number */
function tenantColour(number) {
  return TENANTS[number % TENANTS.length];
}

/** @param {any} memory @param {Uint8Array} cells */
function legend(memory, cells) {
  const list = byId("floor-legend");
  list.replaceChildren();
  const say = (/** @type {string} */ paint, /** @type {string} */ label, /** @type {number} */ blocks, /** @type {string} */ name) => {
    const item = make("li", "", swatch(paint), `${label} `, make("b", "", count(blocks)));
    item.dataset.state = name;
    item.dataset.blocks = String(blocks);
    list.append(item);
  };
  if (by === "state") {
    for (const state of STATES) say(colour(state.colour), state.label, memory.counts[state.name], state.name);
    return;
  }
  const blocks = new Array(memory.tenants.length).fill(0);
  for (const cell of cells) if (cell & 7) blocks[cell >> 3] += 1;
  say(colour("free"), "free", memory.counts.free, "free");
  memory.tenants.forEach((/** @type {string} */ name, /** @type {number} */ number) =>
    say(tenantColour(number), name, blocks[number], name));
}

/** @param {Uint8Array} cells */
function draw(cells) {
  const canvas = byId("floor");
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.floor((byId("floor-box").clientWidth - 2) * ratio));
  const side = Math.max(1, Math.min(14 * ratio, Math.floor(Math.sqrt((width * HEIGHT * ratio) / cells.length))));
  const columns = Math.min(cells.length, Math.floor(width / side));
  const rows = Math.ceil(cells.length / columns);
  if (canvas.width !== width || canvas.height !== rows * side) {
    canvas.width = width;
    canvas.height = rows * side;
    canvas.style.height = `${(rows * side) / ratio}px`;
  }
  // One pixel a block, and the browser makes it larger.
  const small = new OffscreenCanvas(columns, rows);
  const brush = /** @type {OffscreenCanvasRenderingContext2D} */ (small.getContext("2d"));
  const image = brush.createImageData(columns, rows);
  new Uint32Array(image.data.buffer).set(paint(cells));
  brush.putImageData(image, 0, 0);
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, columns * side, rows * side);
  if (side >= 4) {
    context.fillStyle = colour("panel");
    for (let column = 1; column <= columns; column += 1) context.fillRect(column * side - 1, 0, 1, rows * side);
    for (let row = 1; row <= rows; row += 1) context.fillRect(0, row * side - 1, columns * side, 1);
  }
  drawn = { cells, columns, cell: side / ratio };
  canvas.setAttribute("aria-label", `floor plan of ${some(cells.length, "block")}; the list above has the numbers`);
}

/** Each block's pixel. @param {Uint8Array} cells */
function paint(cells) {
  const palette = new Uint32Array(256);
  for (let cell = 0; cell < 256; cell += 1) {
    const state = STATES[Math.min(cell & 7, STATES.length - 1)];
    const value = by === "state" || !(cell & 7) ? colour(state.colour) : tenantColour(cell >> 3);
    const [red, green, blue] = rgb(value);
    palette[cell] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
  return Uint32Array.from(cells, (cell) => palette[cell]);
}

/** Say which block is under the pointer. @param {PointerEvent} event */
function point(event) {
  if (!drawn || !latest) return;
  const column = Math.floor(event.offsetX / drawn.cell);
  const block = Math.floor(event.offsetY / drawn.cell) * drawn.columns + column;
  const hint = byId("floor-hint");
  if (column >= drawn.columns || column < 0 || block < 0 || block >= drawn.cells.length) return;
  const cell = drawn.cells[block];
  const whose = cell & 7 ? `, of tenant ${latest.tenants[cell >> 3]}` : "";
  hint.replaceChildren(make("b", "", `Block ${count(block)}`), `: ${STATES[cell & 7].label}${whose}.`);
}

export function start() {
  byId("floor").addEventListener("pointermove", point);
  byId("floor").addEventListener("pointerdown", point);
}
