// The shell of the page: shows the screen that the address names. A screen is a module with `title` and `show(root, context)`, which returns a
// function that is called when the screen is left.

import * as about from "./about.js";
import * as compare from "./compare.js";
import * as curves from "./curves.js";
import * as look from "./look.js";
import * as play from "./play.js";
import * as replay from "./replay.js";
import * as runs from "./runs.js";
import * as teach from "./teach.js";

/** Screens by the name they have in the address, in the order of the navigation. */
const SCREENS = { runs, curves, compare, play, look, replay, teach, about };

/** An element. Functions become listeners, booleans attributes with or without presence; `null` children are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null));
  return element;
}

/** Asks the server; an Error carries its message. */
async function get(path) {
  let answer;
  try {
    answer = await fetch(path);
  } catch {
    throw new Error("The studio does not answer. Is it still running?");
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error ?? `The studio answered ${answer.status}.`);
  return body;
}

/** Says something to people who do not see the page. */
function say(text) {
  document.getElementById("live").textContent = text;
}

/** The screen and its parameters in the address: `#/curves?run=1` is `["curves", URLSearchParams]`. */
function place() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return [name in SCREENS ? name : "runs", new URLSearchParams(query ?? "")];
}

let leave = null;
let turn = 0;
let keep = null;
let address = location.hash;

async function open() {
  // The link to the content is no screen.
  if (location.hash === "#main") return;
  const question = keep?.();
  if (question && !confirm(question)) return history.replaceState(null, "", address);
  const mine = ++turn;
  leave?.();
  leave = keep = null;
  const [name, params] = place();
  address = location.hash;
  const { title, show } = SCREENS[name];
  document.title = `${title} · iris studio`;
  document.querySelector("h1").textContent = title;
  navigation(name);
  // A place of its own: a screen that is left while it loads goes on in one that nobody sees.
  const root = h("div");
  document.getElementById("screen").replaceChildren(root);
  const current = () => mine === turn;
  const context = {
    params,
    setParams(changed) {
      if (!current()) return;
      const query = changed.toString();
      address = `#/${name}${query ? `?${query}` : ""}`;
      history.replaceState(null, "", address);
    },
    say: (text) => current() && say(text),
    /** `question()` is put to somebody who leaves the screen, unless it is null. */
    keepUnless: (question) => { if (current()) keep = question; },
    /** Nobody waits for what is answered to a screen that was left. */
    async get(path) {
      const [body, error] = await get(path).then((body) => [body], (error) => [null, error]);
      if (!current()) return new Promise(() => {});
      if (error) throw error;
      return body;
    },
    h,
    screens: Object.keys(SCREENS),
  };
  try {
    leave = await show(root, context);
  } catch (error) {
    root.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
  }
}

function navigation(current) {
  const links = Object.entries(SCREENS).map(([name, { title }]) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title));
  const nav = document.querySelector("nav");
  nav.replaceChildren(...links);
  // On a phone not all of them fit.
  const shown = nav.querySelector("[aria-current]");
  nav.scrollLeft = shown.offsetLeft - nav.offsetLeft - (nav.clientWidth - shown.offsetWidth) / 2;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
addEventListener("hashchange", open);
addEventListener("beforeunload", (event) => keep?.() && event.preventDefault());
open();
