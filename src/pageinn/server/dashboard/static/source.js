/** Where the page's state comes from: one request a second, with the key if the server wants one. */

const KEY = "pageinn.key";

/** The key cannot be used: status 401 or 403. */
export class KeyError extends Error {}

/** @returns {string | null} */
export function key() {
  return sessionStorage.getItem(KEY);
}

/** @param {string | null} value null to forget it */
export function setKey(value) {
  if (value === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, value);
}

/** @returns {Promise<any>} */
export async function fetchState() {
  const given = key();
  /** @type {Record<string, string>} */
  const headers = given === null ? {} : { authorization: `Bearer ${given}` };
  const answer = await fetch("/dashboard/state", { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (answer.ok) return answer.json();
  const body = await answer.json().catch(() => null);
  const message = body?.error?.message ?? `the server answers ${answer.status}`;
  if (answer.status === 401 || answer.status === 403) throw new KeyError(message);
  throw new Error(message);
}
