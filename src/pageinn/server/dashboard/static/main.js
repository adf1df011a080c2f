/** The page: asks for the state once a second while somebody looks, and hands its parts to who draws them. */

import * as charts from "./charts.js";
import * as floor from "./floor.js";
import { byId, bytes, clock, count, make, percent, seconds, short, some, span } from "./format.js";
import * as misses from "./misses.js";
import { KeyError, fetchState, key, setKey } from "./source.js";
import * as tree from "./tree.js";

const EVERY = 1000;
/** After so many milliseconds without an answer the page says that what it shows is old. */
const STALE = 5000;
const THEMES = ["auto", "light", "dark"];

let answered = 0;
let trouble = "";
/** @type {number | undefined} */
let timer;
let asking = false;

async function turn() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  await look();
  asking = false;
}

async function look() {
  const began = performance.now();
  try {
    const state = await fetchState();
    answered = performance.now();
    trouble = "";
    byId("login").hidden = true;
    byId("page").hidden = false;
    byId("leave").hidden = key() === null;
    show(state);
  } catch (error) {
    if (error instanceof KeyError) {
      ask(error.message);
      return;
    }
    trouble = error instanceof Error ? error.message : String(error);
  }
  tell();
  if (!document.hidden) timer = setTimeout(turn, Math.max(100, EVERY - (performance.now() - began)));
}

/** Ask for a key. @param {string} why */
function ask(why) {
  byId("page").hidden = true;
  byId("leave").hidden = true;
  byId("login").hidden = false;
  byId("why").textContent = key() === null ? "" : why;
  status("stale", "locked");
  byId("key").focus();
}

/** @param {string} state live or stale @param {string} text */
function status(state, text) {
  byId("status").dataset.state = state;
  byId("status").textContent = text;
}

/** Say how old what is shown is. */
function tell() {
  if (!byId("login").hidden) return;
  const age = performance.now() - answered;
  if (!trouble && age < STALE) status("live", "● live");
  else status("stale", `▲ no news for ${span(age / 1000)}${trouble ? `: ${trouble}` : ""}`);
}

/** @param {any} state */
function show(state) {
  byId("model").textContent = `${state.server.model} · ${state.server.cache.cache_dtype ?? ""} cache · version ${state.server.version}`;
  showAlarms(state.alarms);
  showFigures(state);
  charts.show(state.series);
  misses.show(state.misses);
  showTenants(state.tenants);
  if (state.memory) {
    const old = state.memory.age >= 3 ? ` as of ${span(state.memory.age)} ago` : "";
    const blocks = state.now.blocks;
    const retained = blocks.retained ? ` ${some(blocks.retained, "block")} pinned or retained in all, in use or not.` : "";
    byId("floor-note").textContent =
      `${some(blocks.total, "block")} of ${count(state.server.block_size)} tokens, row by row in the order of their numbers${old}.${retained}${elsewhere(state.now)}`;
    floor.show(state.memory);
    tree.show(state.memory);
  }
}

/** Blocks that are not in the pool. @param {any} now */
function elsewhere(now) {
  const host = now.host.free + now.host.kept + now.host.held;
  const inHost = host ? ` Host memory: ${count(now.host.kept)} kept, ${count(now.host.held)} held, ${count(now.host.free)} free.` : "";
  return now.disk ? `${inHost} Disk: ${some(now.disk.blocks, "block")}, ${bytes(now.disk.bytes)}.` : inHost;
}

/** @param {any[]} alarms */
function showAlarms(alarms) {
  const standing = alarms.filter((alarm) => alarm.until === null);
  const past = alarms.filter((alarm) => alarm.until !== null);
  const parts = standing.map((alarm) => {
    const part = make("div", "alarm", make("h2", "", `▲ ${alarm.key.replaceAll("_", " ")}, since ${clock(alarm.since)}`), make("p", "", alarm.line));
    part.setAttribute("role", "alert");
    return part;
  });
  if (!standing.length) parts.push(make("p", "calm", "No alarm."));
  if (past.length) {
    const said = past.slice(0, 5).map((alarm) => `${alarm.key.replaceAll("_", " ")} ${clock(alarm.since)} to ${clock(alarm.until)}`);
    parts.push(make("p", "past", `Over by now: ${said.join("; ")}.`));
  }
  const box = byId("alarms");
  const text = parts.map((part) => part.textContent).join("\n");
  if (box.dataset.text !== text) box.replaceChildren(...parts); // Screen readers would say it again each second.
  box.dataset.text = text;
  document.title = standing.length ? `▲ ${some(standing.length, "alarm")} · pageinn` : "pageinn";
}

/** @param {any} state */
function showFigures({ now, server }) {
  const { blocks } = now;
  const refused = Object.values(now.refused).reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each, 0);
  const lately = `in the last ${span(now.events_seconds)}`;
  byId("figures").replaceChildren(
    figure("hit_rate", "Hit rate", percent(now.hit_rate), now.hit_rate === null ? "no prompts in the last minute" : "of prompt tokens, last minute"),
    figure("first_token", "Time to first token", seconds(now.first_token), now.first_token === null ? "no answers in the last minute" : `mean of the last minute; 95 % below ${seconds(now.first_token_p95)}`),
    figure("requests", "Requests", count(now.running), `running; ${count(now.waiting)} waiting with ${short(now.queued_tokens)} tokens`),
    figure("in_use", "Pool in use", percent(blocks.total ? blocks.in_use / blocks.total : 0), `${count(blocks.in_use)} of ${some(blocks.total, "block")}; ${count(blocks.kept)} kept`),
    figure("preemptions", "Preemptions", count(now.preemptions), `${lately}; ${some(refused, "request")} refused`),
    figure("speed", "Tokens per second", short(now.generated_rate), `generated; ${short(now.prompt_rate)} of prompts`),
  );
}

/** @param {string} name @param {string} title @param {string} value @param {string} more */
function figure(name, title, value, more) {
  const part = make("div", "figure", make("h3", "", title), make("div", "value", value), make("div", "more", more));
  part.dataset.figure = name;
  return part;
}

/** @param {any[]} tenants */
function showTenants(tenants) {
  const heads = ["tenant", "hit rate", "hits", "queries", "blocks in use", "blocks kept", "blocks evicted", "preemptions"];
  const rows = tenants.map((each) => {
    const cells = [
      each.name, percent(each.queries ? each.hits / each.queries : null), count(each.hits), count(each.queries),
      count(each.in_use), count(each.kept), count(each.evicted), count(each.preemptions),
    ];
    return make("tr", "", ...cells.map((text, column) => make("td", column ? "" : "words", text)));
  });
  if (!rows.length) rows.push(make("tr", "", make("td", "words", "nobody has asked anything yet")));
  byId("tenants").replaceChildren(
    make("thead", "", make("tr", "", ...heads.map((text, column) => make("th", column ? "" : "words", text)))),
    make("tbody", "", ...rows),
  );
}

/** @param {string} choice */
function setTheme(choice) {
  const dark = choice === "dark" || (choice === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = `theme: ${choice}`;
  byId("theme").dataset.choice = choice;
  redraw();
}

function redraw() {
  charts.redraw();
  floor.redraw();
  tree.redraw();
}

/** Buttons of which one is pressed. @param {string} name of the data attribute @param {(value: string) => void} chosen */
function choices(name, chosen) {
  const buttons = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`button[data-${name}]`));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      chosen(button.dataset[name] ?? "");
    });
  }
}

function start() {
  choices("span", charts.setSpan);
  choices("colours", floor.colourBy);
  floor.start();
  tree.start();
  setTheme(localStorage.getItem("pageinn.theme") ?? "auto");
  byId("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(byId("theme").dataset.choice) + 1) % THEMES.length];
    localStorage.setItem("pageinn.theme", next);
    setTheme(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(byId("theme").dataset.choice));
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) redraw();
    width = window.innerWidth;
  });
  byId("login").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    byId("key").value = "";
    turn();
  });
  byId("leave").addEventListener("click", () => { setKey(null); turn(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
  setInterval(tell, EVERY);
  turn();
}

start();
