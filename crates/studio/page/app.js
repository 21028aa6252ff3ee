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
async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The studio does not answer. Is it still running?");
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error ?? `The studio answered ${answer.status}.`);
  return body;
}

const get = (path) => ask(path);
const post = (path, body) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

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

async function open() {
  // The link to the content is no screen.
  if (location.hash === "#main") return;
  const mine = ++turn;
  leave?.();
  leave = null;
  const [name, params] = place();
  const { title, show } = SCREENS[name];
  const root = document.getElementById("screen");
  document.title = `${title} · iris studio`;
  document.querySelector("h1").textContent = title;
  navigation(name);
  root.replaceChildren();
  const context = {
    params,
    setParams(changed) {
      const query = changed.toString();
      history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
    },
    say,
    get,
    post,
    h,
    screens: Object.keys(SCREENS),
  };
  try {
    const left = await show(root, context);
    // Somebody may have gone on while it loaded.
    if (mine === turn) leave = left;
    else left?.();
  } catch (error) {
    if (mine === turn) root.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
  }
}

function navigation(current) {
  const links = Object.entries(SCREENS).map(([name, { title }]) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title));
  document.querySelector("nav").replaceChildren(...links);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
addEventListener("hashchange", open);
open();
