// Every run and agent under the studio's folder, as they are now.

import { eventually, live } from "./live.js";
import { spark } from "./svg.js";
import { ago, counted, duration, number, percent } from "./words.js";

export const title = "Runs";

/** Columns by key: heading, what to sort by, and whether the largest comes first. */
const COLUMNS = [
  ["name", "Run", (run) => run.name],
  ["state", "State", (run) => ["running", "stopped", "finished", "imported"].indexOf(run.state)],
  ["game", "Game", (run) => run.game],
  ["seed", "Seed", (run) => run.seed],
  ["epoch", "Epoch", (run) => run.epoch, true],
  ["score", "Score", (run) => run.score, true],
  ["left", "Time left", (run) => run.seconds_left],
  ["updated", "Updated", (run) => run.updated, true],
];

const GROUPS = [["", "nothing"], ["game", "game"], ["state", "state"], ["settings", "all settings but the seed"]];

/** What can be done with a run: screen, what it is called there, and whether an agent without a run can do it, too. */
const ACTS = [["curves", "Curves", "runs", false], ["play", "Play", "run", true], ["look", "Look", "run", false], ["replay", "Replay", "run", false]];

export async function show(root, { params, setParams, say, get, h, screens }) {
  let runs = await get("api/runs");
  const picked = new Set((params.get("pick") ?? "").split(",").filter(Boolean));
  const rows = new Map();

  const set = (key, value) => {
    value ? params.set(key, value) : params.delete(key);
    setParams(params);
    draw();
  };
  const filter = h("input", { type: "search", id: "filter", value: params.get("filter"), placeholder: "catch running", oninput: (e) => set("filter", e.target.value) });
  const grouping = h("select", { id: "group", onchange: (e) => set("group", e.target.value) },
    GROUPS.map(([value, text]) => h("option", { value, selected: value === (params.get("group") ?? "") }, text)));
  const together = [["curves", "Curves"], ["compare", "Compare"]].filter(([screen]) => screens.includes(screen))
    .map(([screen, text]) => [screen, h("a", { class: `button ${screen === "curves" ? "primary" : ""}` }, text)]);
  const lead = h("p", { class: "lead" });
  const head = h("tr", {},
    h("th", { scope: "col" }, h("span", { class: "unseen" }, "Choose")),
    COLUMNS.map(([key, text]) => h("th", { scope: "col", "data-key": key }, h("button", { onclick: () => sort(key) }, text))));
  const table = h("table", {}, h("caption", { class: "unseen" }, "Runs and imported agents"), h("thead", {}, head));
  const tools = h("div", { class: "tools" },
    h("div", { class: "field" }, h("label", { for: "filter" }, "Filter"), filter),
    h("div", { class: "field" }, h("label", { for: "group" }, "Group by"), grouping),
    h("div", { class: "spring" }),
    together.map(([, link]) => link));
  const card = h("div", { class: "card scroll runs" }, table);
  const nothing = h("div", { class: "card empty" });
  root.append(lead, tools, card, nothing);

  function order() {
    const text = params.get("sort") ?? "-updated";
    return text.startsWith("-") ? [text.slice(1), -1] : [text, 1];
  }

  function sort(key) {
    const [current, direction] = order();
    const largestFirst = COLUMNS.find(([name]) => name === key)[3];
    const next = current === key ? -direction : largestFirst ? -1 : 1;
    set("sort", `${next < 0 ? "-" : ""}${key}`);
    say(`sorted by ${key}, ${next < 0 ? "descending" : "ascending"}`);
  }

  function shown() {
    const words = (params.get("filter") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => `${run.name} ${run.state} ${run.game ?? ""} seed${run.seed ?? ""}`.toLowerCase();
    const [key, direction] = order();
    const value = COLUMNS.find(([name]) => name === key)?.[2] ?? COLUMNS[0][2];
    return runs.filter((run) => words.every((word) => text(run).includes(word))).sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      // What has no value comes last, whatever the direction.
      if (x == null || y == null) return (x == null) - (y == null);
      return (x < y ? -1 : x > y ? 1 : a.name < b.name ? -1 : 1) * (x === y ? 1 : direction);
    });
  }

  function sections(list) {
    const by = params.get("group") ?? "";
    if (!by) return [["", list]];
    const found = new Map();
    for (const run of list) {
      const key = by === "settings" ? run.group : run[by] ?? "no game";
      found.set(key, [...(found.get(key) ?? []), run]);
    }
    return [...found].map(([key, members]) => {
      const scores = members.map((run) => run.score).filter((score) => score != null);
      const mean = scores.length ? `, mean score ${number(scores.reduce((a, b) => a + b) / scores.length)}` : "";
      const name = by === "settings" ? members[0].label : key;
      return [`${name} · ${counted(members.length, "run")}${mean}`, members];
    });
  }

  function draw() {
    const list = shown();
    const [key, direction] = order();
    for (const cell of head.querySelectorAll("[data-key]")) {
      const sorted = cell.dataset.key === key;
      cell.setAttribute("aria-sort", sorted ? (direction > 0 ? "ascending" : "descending") : "none");
    }
    for (const id of rows.keys()) if (!runs.some((run) => run.id === id)) rows.delete(id), picked.delete(id);
    const bodies = sections(list).map(([text, members]) => {
      const lines = members.map((run) => {
        if (!rows.has(run.id)) rows.set(run.id, row(run));
        const line = rows.get(run.id);
        line.update(run);
        return line.element;
      });
      const heading = text ? [h("tr", { class: "group-row" }, h("th", { colspan: COLUMNS.length + 1, scope: "rowgroup" }, text))] : [];
      return [...heading, ...lines];
    });
    // Rows that are where they belong stay there, and with them the focus.
    const wanted = bodies.flat();
    const there = [...table.querySelectorAll("tbody > tr")];
    if (wanted.length !== there.length || wanted.some((line, i) => line !== there[i])) {
      const focused = document.activeElement;
      table.querySelectorAll("tbody").forEach((body) => body.remove());
      table.append(...bodies.map((lines) => h("tbody", {}, lines)));
      if (table.contains(focused)) focused.focus();
    }
    const running = runs.filter((run) => run.state === "running").length;
    lead.textContent = runs.length
      ? `${counted(runs.length, "run")}${running ? `, ${running} running` : ""}${list.length < runs.length ? `, ${list.length} shown` : ""}`
      : "";
    lead.hidden = tools.hidden = runs.length === 0;
    card.hidden = list.length === 0;
    nothing.hidden = list.length > 0;
    nothing.replaceChildren(...(runs.length
      ? [h("p", {}, "No run fits the filter.")]
      : [h("h2", {}, "No runs yet"), h("p", {}, "A run appears here as soon as it starts:"), h("p", {}, h("code", {}, "iris train")),
        h("p", { class: "quiet" }, "It trains a small agent in minutes, and this page follows it live.")]));
    choose();
  }

  function choose() {
    const ids = [...picked].filter((id) => runs.some((run) => run.id === id && run.kind === "run"));
    for (const [screen, link] of together) {
      const text = screen === "curves" ? "Curves" : "Compare";
      link.textContent = ids.length ? `${text} of ${ids.length}` : text;
      link.href = `#/${screen}${ids.length ? `?runs=${ids.join(",")}` : ""}`;
    }
    for (const [id, { element, box }] of rows) {
      element.toggleAttribute("data-picked", picked.has(id));
      box.checked = picked.has(id);
    }
  }

  function row(run) {
    const cell = (label, extra = "") => h("td", { "data-label": label, class: extra });
    const box = h("input", {
      type: "checkbox", "aria-label": `Choose ${run.name}`,
      onchange: () => {
        box.checked ? picked.add(run.id) : picked.delete(run.id);
        picked.size ? params.set("pick", [...picked].join(",")) : params.delete("pick");
        setParams(params);
        choose();
      },
    });
    const [state, game, seed, epoch, score, left, updated] =
      ["State", "Game", "Seed", "Epoch", "Score", "Time left", "Updated"].map((label) => cell(label));
    const acts = ACTS.filter(([screen, , , agents]) => screens.includes(screen) && (agents || run.kind === "run"))
      .map(([screen, text, key]) => h("a", { href: `#/${screen}?${key}=${run.id}`, "aria-label": `${text} of ${run.name}` }, text));
    const first = acts[0]?.getAttribute("href");
    const name = h("td", { class: "name" }, first ? h("a", { href: first }, run.name) : run.name);
    const problem = h("div", { class: "quiet" });
    name.append(problem, h("div", { class: "acts" }, acts));
    const element = h("tr", {}, h("td", { class: "pick" }, h("label", { class: "check" }, box, h("span", { class: "unseen" }, `Choose ${run.name}`))),
      name, state, game, seed, epoch, score, left, updated);
    let before = "";
    const update = (run) => {
      updated.textContent = ago(run.updated);
      left.textContent = run.state === "running" ? duration(run.seconds_left) : "–";
      const now = JSON.stringify([run.state, run.epoch, run.epochs, run.score, run.problem]);
      if (now === before) return;
      before = now;
      problem.textContent = run.problem ?? "";
      state.replaceChildren(h("span", { class: `state ${run.state}` }, run.state));
      game.textContent = run.game ?? "–";
      seed.textContent = run.seed ?? "–";
      epoch.replaceChildren(...(run.epochs ? [`${run.epoch ?? 0} / ${run.epochs}`,
        h("progress", { max: run.epochs, value: run.epoch ?? 0, "aria-label": `Epochs of ${run.name}` })] : ["–"]));
      score.replaceChildren(run.score == null ? "–" : h("div", { class: "score" },
        h("div", {}, h("strong", {}, number(run.score)), run.progress == null ? null
          : h("div", { class: "quiet", title: "from random (0%) to skilled play (100%)" }, percent(run.progress))),
        spark(run.scores)));
    };
    return { element, box, update };
  }

  const refresh = eventually(async () => {
    try {
      const before = new Map(runs.map((run) => [run.id, run]));
      runs = await get("api/runs");
      for (const run of runs) {
        const was = before.get(run.id);
        if (was && was.state !== run.state) say(`${run.name} is ${run.state}`);
        else if (was && was.score !== run.score) say(`${run.name}: score ${number(run.score)}`);
      }
      draw();
    } catch (error) {
      say(error.message);
    }
  });
  draw();
  const close = live([], refresh);
  const clock = setInterval(() => rows.forEach((line, id) => line.update(runs.find((run) => run.id === id) ?? {})), 10000);
  return () => {
    close();
    clearInterval(clock);
  };
}
