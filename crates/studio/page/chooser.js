// The list in which runs are chosen, grouped by everything but their seed.

import { swatch } from "./svg.js";
import { breakable, counted } from "./words.js";

/** Runs that are shown when the address names none. */
const FIRST = 10;

/** The ids in the address; without any, the runs that changed last. */
export function chosen(params, runs) {
  const named = (params.get("runs") ?? "").split(",").filter(Boolean);
  if (named.length) return named.filter((id) => runs.some((run) => run.id === id));
  const newest = [...runs].sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
  return newest.slice(0, FIRST).map((run) => run.id);
}

/** Runs by group, in the order of their names, each group with the index of its colour. */
export function grouped(runs) {
  const groups = new Map();
  for (const run of runs) {
    if (!groups.has(run.group)) groups.set(run.group, { id: run.group, runs: [] });
    groups.get(run.group).runs.push(run);
  }
  return [...groups.values()].map((group, index) => ({ ...group, index }));
}

/** What tells a group from the others in a list. */
const label = ({ runs }) => `${runs[0].label}${runs.length > 1 ? ` · ${counted(runs.length, "run")}` : ""}`;

/** A run within its group: its seed, and its name where another run has the same one. */
function member(run, runs) {
  const alone = runs.filter((other) => other.seed === run.seed).length === 1;
  return `seed ${run.seed ?? "–"}${alone ? "" : ` · ${run.name.split("/").pop()}`}`;
}

/** A list of `runs` with those in `ids` checked. Calls `changed(ids)`. */
export function chooser({ h }, runs, ids, changed) {
  const selected = new Set(ids);
  const boxes = [];
  const mark = () => {
    for (const { box, members } of boxes) {
      const count = members.filter((run) => selected.has(run.id)).length;
      box.checked = count === members.length;
      box.indeterminate = count > 0 && count < members.length;
    }
  };
  const toggle = (members, on) => {
    members.forEach((run) => (on ? selected.add(run.id) : selected.delete(run.id)));
    mark();
    changed(runs.map((run) => run.id).filter((id) => selected.has(id)));
  };
  const choice = (members, text, mark) => {
    const box = h("input", { type: "checkbox", onchange: (event) => toggle(members, event.target.checked) });
    boxes.push({ box, members });
    return h("label", {}, box, mark, h("span", { class: "text" }, breakable(text)));
  };
  const items = grouped(runs).map((group) =>
    h("li", {}, choice(group.runs, label(group), swatch(group.index)),
      group.runs.length > 1 ? h("ul", {}, group.runs.map((run) => h("li", {}, choice([run], member(run, group.runs))))) : null));
  const wide = matchMedia("(min-width: 62rem)").matches;
  const element = h("details", { class: "chooser", open: wide },
    h("summary", {}, "Runs shown"),
    h("div", { class: "bulk" },
      h("button", { class: "small", onclick: () => toggle(runs, true) }, "All"),
      h("button", { class: "small", onclick: () => toggle(runs, false) }, "None")),
    h("ul", {}, items));
  mark();
  return element;
}
