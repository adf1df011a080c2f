/** Why prompts that were computed before were not found: what differs, where, what it costs, what to do. */

import { byId, count, make, percent, some } from "./format.js";

/** So many reasons are shown. */
const MOST = 5;
/** What a difference is called where it is blamed; others go by their own names. @type {Record<string, string>} */
const NAMES = {
  clock: "A timestamp", date: "A date", id: "An id", "user name": "A user's name", counter: "A counter",
  "variant flag": "A switch between variants", "key order": "JSON keys in changing order",
  "tool order": "Tools in changing order", "tools added or removed": "Tools that come and go",
  "order of lines": "Lines in changing order", whitespace: "Whitespace", "edited history": "A history that was edited",
  other: "Something that varies", evicted: "Evicted before it was asked for again", reset: "Dropped by a reset",
  "not kept": "Not kept after its request", "other scope": "Another tenant's or another salt's", "not read": "The cache was not read",
};

/** What is said of requests that nothing is to be blamed for. @type {Record<string, string>} */
const FAIR = {
  "whole prompt": "found whole", "goes on": "went on where an earlier one ended", content: "asked something of their own",
  new: "began like no other", "below granularity": "shorter than a block", "off the record": "found what is not on record any more",
};

/** @param {any} misses the state's */
export function show(misses) {
  const known = misses.requests > 0;
  const share = known && misses.prompt_tokens ? percent(misses.cached_tokens / misses.prompt_tokens) : "–";
  const pending = misses.pending ? ` ${some(misses.pending, "request")} still to be looked at.` : "";
  const masked = misses.masked ? " Letters of prompts are shown as x, digits as 0." : "";
  byId("misses-note").textContent = known
    ? `The latest ${some(misses.requests, "request")}, of whose prompt tokens ${share} were found.${pending}${masked}`
    : "No request yet.";
  const avoidable = (misses.reasons ?? []).filter((/** @type {any} */ reason) => reason.avoidable);
  const rest = (misses.reasons ?? []).filter((/** @type {any} */ reason) => !reason.avoidable);
  const shown = avoidable.slice(0, MOST);
  const items = shown.map(item);
  if (known && !items.length) items.push(make("p", "", "Nothing that could have been avoided."));
  byId("misses").replaceChildren(...items);
  const more = avoidable.length > MOST ? [some(avoidable.length - MOST, "smaller reason")] : [];
  const fair = rest.map((/** @type {any} */ reason) => `${count(reason.requests)} ${FAIR[reason.kind] ?? reason.kind}`);
  byId("misses-rest").textContent = [...more, ...(fair.length ? [`Of the others: ${fair.join(", ")}`] : [])].join(". ");
}

/** @param {any} reason */
function item(reason) {
  const name = NAMES[reason.kind] ?? reason.kind;
  const detail = reason.detail ? ` (${reason.detail})` : "";
  const place = reason.part ? ` in ${place_of(reason)}` : "";
  const cost = `${some(reason.requests, "request")}, ${some(reason.tokens, "token")} computed again`;
  const entry = make("li", "", make("h3", "", `${name}${detail}${place}`), make("p", "cost", cost));
  entry.dataset.kind = reason.kind;
  if (reason.example && (reason.example.earlier || reason.example.later)) {
    const [before, after] = [reason.example.earlier, reason.example.later].map((text) => make("code", "", text || "(nothing)"));
    entry.append(make("p", "", "For example ", before, " and later ", after));
  }
  if (reason.fix) entry.append(make("p", "", reason.fix));
  return entry;
}

/** @param {any} reason */
function place_of(reason) {
  const part = { system: "the system prompt", template: "the chat template", prompt: "the prompt" }[/** @type {string} */ (reason.part)] ?? reason.part;
  const line = reason.line ? `, line ${count(reason.line)}` : "";
  return `${part}, behind ${some(reason.position, "token")}${line}`;
}
