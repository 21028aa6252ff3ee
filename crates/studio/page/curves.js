// All metrics of runs, live while they train.

import { chart, numbers, zoomOf, zoomText } from "./chart.js";
import { chooser, chosen, grouped } from "./chooser.js";
import { eventually, live } from "./live.js";
import { renew } from "./parts.js";
import { breakable } from "./words.js";

export const title = "Curves";

/** What people look at first. */
const SCORE = "evaluation/return";
const FIRST = ["evaluation", "collection", "tokenizer", "world_model", "actor_critic"];

export async function show(root, context) {
  const { params, setParams, say, get, h } = context;
  let runs = (await get("api/runs")).filter((run) => run.kind === "run");
  if (!runs.length) {
    root.append(h("div", { class: "card empty" }, h("p", {}, "No run has written metrics yet.")));
    return live([], () => dispatchEvent(new HashChangeEvent("hashchange")));
  }
  let ids = chosen(params, runs);
  let close = () => {};
  const cards = new Map();

  const set = (key, value) => {
    value ? params.set(key, value) : params.delete(key);
    setParams(params);
  };
  const flag = (key) => params.get(key) === "1";
  const view = () => ({
    axis: params.get("x") ?? "epoch",
    log: flag("log"),
    picked: params.get("pick"),
  });
  const query = (metric) => {
    const wanted = new URLSearchParams({ runs: ids.join(","), metric });
    for (const key of ["x", "smooth", "band"]) if (params.get(key)) wanted.set(key, params.get(key));
    if (flag("single")) wanted.set("single", "true");
    return wanted;
  };

  const field = (id, text, control) => h("div", { class: "field" }, h("label", { for: id }, text), control);
  const select = (id, key, options) => h("select", { id, onchange: (event) => { set(key, event.target.value); if (key === "x") zoom(null); redraw(); } },
    options.map(([value, text]) => h("option", { value, selected: value === (params.get(key) ?? "") }, text)));
  const smooth = h("input", {
    type: "range", id: "smooth", min: 0, max: 0.98, step: 0.02, value: params.get("smooth") ?? 0,
    oninput: (event) => { set("smooth", Number(event.target.value) ? event.target.value : ""); redraw(); },
  });
  const check = (key, text) => h("label", { class: "check" },
    h("input", { type: "checkbox", checked: flag(key), onchange: (event) => { set(key, event.target.checked ? "1" : ""); redraw(); } }), text);
  const tools = h("div", { class: "tools" },
    field("metrics", "Metrics", h("input", { type: "search", id: "metrics", value: params.get("metrics"), placeholder: "loss, return", oninput: (e) => { set("metrics", e.target.value); sift(); } })),
    field("axis", "Horizontal axis", select("axis", "x", [["", "epoch"], ["steps", "steps of the game"]])),
    field("smooth", "Smoothing", smooth),
    field("band", "Band", select("band", "band", [["", "95% interval of the mean"], ["range", "lowest to highest run"]])),
    check("log", "Log scale"),
    check("single", "Every run by itself"));
  const list = h("aside", { class: "card", "aria-label": "Runs shown" });
  const relist = () => list.replaceChildren(chooser(context, runs, ids, (now) => {
    ids = now;
    set("runs", ids.join(",") || "none");
    follow();
    arrange();
  }));
  relist();
  const sections = h("div", {});
  root.append(h("div", { class: "beside" }, list, h("div", {}, tools, sections)));

  /** The series of a group or run, the same whatever else is shown. */
  function index(group) {
    const groups = grouped(runs);
    if (flag("single")) return runs.findIndex((run) => run.id === group.id);
    return groups.find((known) => known.id === group.id)?.index ?? 0;
  }

  /** A card per metric, in sections. */
  const arrange = eventually(async () => {
    const metrics = await get(`api/metrics?runs=${ids.join(",")}`);
    const wanted = new Set(metrics.map(({ name }) => name));
    for (const [name, card] of cards) if (!wanted.has(name)) card.leave(), cards.delete(name);
    const names = [...new Set(metrics.map(({ name }) => name.split("/")[0]))];
    const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
    names.sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
    // What is where it belongs stays there, and with it the focus.
    renew(sections, [ids.length > 0, metrics.map(({ name }) => name)], () => (names.length ? names.map((section) => {
      const members = metrics.filter(({ name }) => name.split("/")[0] === section);
      members.sort((a, b) => (b.name === SCORE) - (a.name === SCORE));
      for (const metric of members) if (!cards.has(metric.name)) cards.set(metric.name, card(metric));
      return h("section", { "aria-label": section }, h("h2", {}, section.replaceAll("_", " ")), h("div", { class: "charts" }, members.map(({ name }) => cards.get(name).element)));
    }) : h("div", { class: "card empty" }, h("p", {}, ids.length ? "These runs have no metrics yet, or were deleted." : "Choose runs to see their curves."))));
    sift();
    redraw();
  });

  /** Hides what the filter of metrics leaves out. */
  function sift() {
    const words = (params.get("metrics") ?? "").toLowerCase().split(/[\s,]+/).filter(Boolean);
    for (const [name, { element }] of cards) element.hidden = words.length > 0 && !words.some((word) => name.includes(word));
    for (const section of sections.querySelectorAll("section")) section.hidden = !section.querySelector(".chart:not([hidden])");
  }

  function card(metric) {
    const box = h("div", { class: "plot" });
    const table = h("div", {});
    const csv = h("a", { class: "button small plain", download: true }, "CSV");
    const listed = (key) => (params.get(key) ?? "").split(",").includes(metric.name);
    const press = (key, text, act) => {
      const button = h("button", {
        class: "small plain", "aria-pressed": String(listed(key)),
        onclick: () => {
          const names = new Set((params.get(key) ?? "").split(",").filter(Boolean));
          names.has(metric.name) ? names.delete(metric.name) : names.add(metric.name);
          set(key, [...names].join(","));
          button.setAttribute("aria-pressed", String(names.has(metric.name)));
          act();
        },
      }, text, h("span", { class: "unseen" }, ` of ${metric.name}`));
      return button;
    };
    const element = h("figure", { class: "chart card", "data-metric": metric.name },
      h("div", { class: "top" }, h("h3", { title: metric.name }, breakable(metric.name.split("/").slice(1).join("/") || metric.name)), h("div", { class: "acts" },
        press("wide", "Enlarge", () => element.classList.toggle("wide", listed("wide"))),
        press("table", "Table", () => draw()), csv)),
      h("p", { class: "meaning", title: plain(metric.meaning) }, plain(metric.meaning)),
      box, table);
    element.classList.toggle("wide", listed("wide"));
    let [drawn, visible, curves, stale, look] = [null, false, null, true, ""];
    const fetched = eventually(async () => {
      if (!visible || !stale) return;
      stale = false;
      try {
        const anew = look !== JSON.stringify(view());
        look = JSON.stringify(view());
        curves = await get(`api/curves?${query(metric.name)}`);
        draw(anew);
      } catch (error) {
        drawn?.destroy();
        drawn = null;
        box.replaceChildren(h("p", { class: "problem" }, error.message));
      }
    });
    function draw(anew = true) {
      if (!curves) return;
      const options = { ...view(), metric: metric.name, index, pick, zoom: zoomOf(params), zoomed: (range) => zoom(range, metric.name) };
      if (anew || !drawn?.update(curves)) {
        drawn?.destroy();
        box.replaceChildren();
        drawn = chart(context, box, curves, options);
      }
      renew(table, listed("table") ? [curves, options.axis] : null, () => (listed("table") ? [numbers(context, curves, options)] : []));
      csv.href = `api/curves.csv?${query(metric.name)}`;
    }
    const watch = new IntersectionObserver(([entry]) => {
      visible = entry.isIntersecting;
      fetched();
    }, { rootMargin: "300px" });
    watch.observe(element);
    return {
      element,
      redraw: () => { stale = true; fetched(); },
      repaint: () => draw(),
      zoom: (range) => drawn?.zoom(range),
      leave: () => { watch.disconnect(); drawn?.destroy(); },
    };
  }

  function redraw() {
    cards.forEach((card) => card.redraw());
  }

  /** Shows a part of the horizontal axis in all charts but the one in which it was chosen. */
  function zoom(range, chosen) {
    set("zoom", zoomText(range));
    cards.forEach((card, name) => { if (name !== chosen) card.zoom(range); });
  }

  function pick(id) {
    set("pick", id === params.get("pick") ? "" : id ?? "");
    cards.forEach((card) => card.repaint());
    const group = id && grouped(runs).find((group) => group.id === id);
    say(group && params.get("pick") ? `${group.runs[0].game ?? group.runs[0].name} stands out` : "all curves are equal");
  }

  function follow() {
    close();
    close = live(ids, async (change) => {
      if (change.list) {
        const names = () => runs.map((run) => `${run.id} ${run.label}`).join();
        const before = names();
        runs = (await get("api/runs").catch(() => runs)).filter((run) => run.kind === "run");
        if (names() !== before && !list.contains(document.activeElement)) relist();
      }
      // Another epoch may bring another metric.
      if (change.runs.length) arrange();
    });
  }

  const escape = (event) => { if (event.key === "Escape" && params.get("pick")) pick(null); };
  const repaint = () => cards.forEach((card) => card.repaint());
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  addEventListener("keydown", escape);
  scheme.addEventListener("change", repaint);
  follow();
  arrange();
  return () => {
    close();
    removeEventListener("keydown", escape);
    scheme.removeEventListener("change", repaint);
    cards.forEach((card) => card.leave());
  };
}

/** Markdown of one line as text. */
const plain = (text) => (text ?? "").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll("`", "");
