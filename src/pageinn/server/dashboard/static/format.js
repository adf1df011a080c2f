/** Numbers and times as people read them, and elements without markup in strings. */

const GROUPED = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : GROUPED.format(value);
}

/** A rate that may be small. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 && value < 10 && !Number.isInteger(value) ? value.toFixed(1) : count(value);
}

/** A large number in few characters. @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10000) return GROUPED.format(value);
  return value < 1e6 ? `${(value / 1e3).toPrecision(3)} k` : `${(value / 1e6).toPrecision(3)} M`;
}

/** A share from 0 to 1. @param {number | null | undefined} share */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

/** @param {number | null | undefined} value in seconds */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${Math.round(value)} s`;
}

/** How long, in one unit. @param {number} value in seconds */
export function span(value) {
  if (value < 120) return `${Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} minutes` : `${Math.round(value / 3600)} hours`;
}

/** @param {number} value bytes */
export function bytes(value) {
  const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (value >= 1024 && step < steps.length - 1) { value /= 1024; step += 1; }
  return `${step ? value.toPrecision(3) : value} ${steps[step]}`;
}

/** @param {number} time seconds since 1970 */
export function clock(time) {
  return new Date(1000 * time).toLocaleTimeString("en-GB");
}

/** @param {number} number @param {string} one @param {string} [many] */
export function some(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/**
 * An element with a class and children; strings become text, never markup.
 * @param {string} tag @param {string} [name] @param {...(Node | string)} children
 */
export function make(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

/** @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/** The value of a colour in the style sheet. @param {string} name */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** @param {string} hex as #rrggbb @returns {[number, number, number]} */
export function rgb(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** A small square of a colour. @param {string} value */
export function swatch(value) {
  const square = make("span", "swatch");
  square.style.background = value;
  return square;
}
