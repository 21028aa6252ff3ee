// A chart of curves with bands, by uPlot, and the same numbers as a table.

import { colour, dash, swatch } from "./svg.js";
import { number } from "./words.js";

const { uPlot } = window;

/** A part of the horizontal axis as it stands in the address: "2~10". */
export const zoomOf = (params) => {
  const range = (params.get("zoom") ?? "").split("~").map(Number);
  return range.length === 2 && range[0] < range[1] ? range : null;
};
export const zoomText = (range) => (range ? range.map((x) => Number(x.toPrecision(6))).join("~") : "");

/** Steps of an axis that counts. */
const WHOLE = [1, 2, 5].flatMap((digit) => Array.from({ length: 12 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);

/** Charts under one cursor. */
const together = uPlot.sync("curves");

const translucent = (hex, share) => `${hex}${Math.round(255 * share).toString(16).padStart(2, "0")}`;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Series and their values as uPlot wants them: which group each belongs to, and the series of each group's mean. */
function layout(curves, { log, index, picked }) {
  const positive = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
  const data = [curves.x];
  const series = [{}];
  const bands = [];
  const owner = [null];
  const means = new Map();
  const add = (group, values, options) => {
    data.push(positive(values));
    series.push({ spanGaps: true, points: { show: false }, ...options });
    owner.push(group);
  };
  for (const group of curves.groups) {
    const paint = colour(index(group));
    const faded = picked && picked !== group.id;
    const strength = faded ? 0.25 : 1;
    if (group.runs.length > 1) {
      const low = data.length;
      add(null, group.low, { stroke: "transparent" });
      add(null, group.high, { stroke: "transparent" });
      bands.push({ series: [low + 1, low], fill: translucent(paint, 0.16 * strength) });
      for (const run of group.runs) add(null, run.values, { stroke: translucent(paint, 0.3 * strength), width: 1 });
    }
    means.set(group, data.length);
    add(group, group.mean, {
      label: group.label, stroke: translucent(paint, strength), width: picked === group.id ? 3 : 2, dash: dash(index(group)),
      points: { show: (u) => u.data[0].length < 60, size: 5, fill: translucent(paint, strength), stroke: translucent(paint, strength) },
    });
  }
  return { data, series, bands, owner, means };
}

/**
 * Draws `curves` (of the server) into `box`. `index(group)` is the series of a group, `picked` the id of the one that stands out.
 * `pick(id)` is called with the group whose curve was clicked, `zoomed(range)` with the part that was enlarged, or null. Returns
 * `{ update, zoom, destroy }`: `update` takes newer curves, or says that they need another chart.
 */
export function chart({ h }, box, curves, { metric, axis, log, index, picked, pick, zoom = null, zoomed = () => {} }) {
  const built = (curves) => layout(curves, { log, index, picked });
  const kind = (curves) => JSON.stringify(curves.groups.map((group) => [group.id, group.label, index(group), group.runs.length]));
  let { data, series, bands, owner, means } = built(curves);
  const drawn = kind(curves);
  let byHand = false;
  const hover = h("div", { class: "hover", hidden: true });
  const size = () => ({ width: Math.max(200, box.clientWidth), height: Math.max(120, box.clientHeight) });
  const quiet = style("--quiet");
  const line = { stroke: style("--line"), width: 1 };
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const axes = { stroke: quiet, grid: line, ticks: line, font, labelFont: font };
  const plot = new uPlot({
    ...size(),
    padding: [8, 12, 0, 0],
    scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
    series, bands,
    axes: [
      { ...axes, label: axis === "steps" ? "steps" : "epoch", labelSize: 18, size: 30, incrs: WHOLE, values: (_, ticks) => ticks.map(number) },
      { ...axes, size: 68, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick))) },
    ],
    legend: { show: false },
    cursor: {
      // Charts share the cursor; what is enlarged comes to the others through the address.
      sync: { key: together.key, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      points: { show: (u, i) => (owner[i] ? undefined : false) },
      drag: { x: true, y: false },
    },
    hooks: { setCursor: [tell], ready: [listen], setScale: [scaled] },
  }, data, box);
  box.append(hover);

  /** The group whose mean is nearest to the cursor, within reach. */
  function nearest(u) {
    const { idx, top } = u.cursor;
    let [best, reach] = [null, 40];
    for (const [group, at] of means) {
      const value = u.data[at][idx];
      if (value == null) continue;
      const distance = Math.abs(u.valToPos(value, "y") - top);
      if (distance < reach) [best, reach] = [group, distance];
    }
    return best;
  }

  function tell(u) {
    const { idx, left, top } = u.cursor;
    hover.hidden = idx == null || left == null || left < 0 || top < 0 || !box.matches(":hover");
    if (hover.hidden) return;
    const near = nearest(u);
    const lines = [...means].map(([group, at]) => [group, u.data[at][idx]]).filter(([, value]) => value != null)
      .sort((a, b) => b[1] - a[1]).slice(0, 12);
    hover.replaceChildren(
      h("div", { class: "quiet" }, `${axis === "steps" ? "step" : "epoch"} ${number(u.data[0][idx])}`),
      ...lines.map(([group, value]) => h("div", { class: `row ${group === near ? "near" : ""}` }, swatch(index(group)),
        h("span", {}, group.label), h("span", {}, number(value)),
        group.low[idx] == null ? null : h("span", { class: "quiet" }, `${number(group.low[idx])} to ${number(group.high[idx])}`))));
    const right = left > u.over.clientWidth / 2;
    hover.style.top = `${Math.min(top, u.over.clientHeight - 40)}px`;
    hover.style.left = right ? "auto" : `${left + 75}px`;
    hover.style.right = right ? `${u.over.clientWidth - left + 20}px` : "auto";
  }

  function listen(u) {
    let pressed = null;
    u.over.addEventListener("mousedown", (event) => {
      pressed = [event.clientX, event.clientY];
      byHand = true;
    });
    u.over.addEventListener("click", (event) => {
      // Who drags enlarges a part of the chart.
      if (pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 4) return;
      pick(nearest(u)?.id ?? null);
    });
    u.over.addEventListener("mouseleave", () => (hover.hidden = true));
  }

  function scaled(u, scale) {
    if (scale !== "x" || !byHand) return;
    byHand = false;
    const { min, max } = u.scales.x;
    const all = u.data[0];
    zoom = min <= all[0] && max >= all.at(-1) ? null : [min, max];
    zoomed(zoom);
  }

  /** Shows a part of the horizontal axis, or all of it. */
  function show(range) {
    byHand = false;
    zoom = range;
    if (range) plot.setScale("x", { min: range[0], max: range[1] });
    else plot.setData(plot.data);
  }

  const canvas = plot.root.querySelector("canvas");
  canvas.setAttribute("role", "img");
  const describe = () => {
    const newest = curves.groups.map((group) => `${group.label}: ${number(group.mean.findLast((value) => value != null))}`);
    canvas.setAttribute("aria-label", `Chart of ${metric}. Newest values: ${newest.join("; ") || "none"}.`);
  };
  describe();
  if (zoom) show(zoom);

  const watch = new ResizeObserver(() => plot.setSize(size()));
  watch.observe(box);
  return {
    zoom: show,
    update(newer) {
      if (kind(newer) !== drawn) return false;
      curves = newer;
      ({ data, owner, means } = built(newer));
      byHand = false;
      plot.setData(data, !zoom);
      // Draws, too.
      if (zoom) show(zoom);
      describe();
      return true;
    },
    destroy() {
      watch.disconnect();
      plot.destroy();
      hover.remove();
    },
  };
}

/** The numbers of a chart, newest first. */
export function numbers({ h }, curves, { metric, axis }) {
  const columns = curves.groups.flatMap((group) => [
    [group.runs.length > 1 ? `${group.label}, mean` : group.label, group.mean],
    ...(group.runs.length > 1 ? [["low", group.low], ["high", group.high]] : []),
  ]);
  const rows = curves.x.map((x, i) => h("tr", {}, h("th", { scope: "row" }, number(x)), columns.map(([, values]) => h("td", {}, number(values[i])))));
  return h("div", { class: "numbers", tabindex: 0, role: "region", "aria-label": `Numbers of ${metric}` },
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, axis === "steps" ? "steps" : "epoch"),
      columns.map(([name]) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows.reverse())));
}
