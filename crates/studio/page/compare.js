// Runs beside each other: final scores with intervals, the curve of their scores, and the settings in which they differ.

import { chart, zoomOf, zoomText } from "./chart.js";
import { chooser, chosen, grouped } from "./chooser.js";
import { eventually, live } from "./live.js";
import { busy, problems, renew } from "./parts.js";
import { COLOURS, svg, swatch } from "./svg.js";
import { breakable, counted, number, percent } from "./words.js";

export const title = "Compare";

const METRIC = "evaluation/return";

export async function show(root, context) {
  const { params, setParams, get, h } = context;
  const runs = (await get("api/runs")).filter((run) => run.kind === "run");
  if (!runs.length) {
    root.append(h("div", { class: "card empty" }, h("p", {}, "There are no runs to compare yet.")));
    return () => {};
  }
  let ids = chosen(params, runs);
  let close = () => {};
  let drawn = null;
  const set = (key, value) => {
    value ? params.set(key, value) : params.delete(key);
    setParams(params);
  };
  const index = (group) => grouped(runs).find((known) => known.id === group.id)?.index ?? 0;
  const list = h("aside", { class: "card", "aria-label": "Runs compared" }, chooser(context, runs, ids, (now) => {
    ids = now;
    set("runs", ids.join(",") || "none");
    follow();
    draw();
  }));
  const { problem, complain } = problems(h);
  const none = h("div", { class: "card empty" }, h("p", {}, "Choose runs to compare."));
  const [final, settled, plot] = [h("div", {}), h("div", {}), h("div", { class: "plot" })];
  const content = h("div", { hidden: true },
    h("h2", {}, "Final scores"), final,
    h("h2", {}, "Score over time"), h("figure", { class: "chart card wide" }, plot),
    h("h2", {}, "Settings that differ"), settled);
  none.hidden = true;
  root.append(h("div", { class: "beside" }, list, h("div", {}, problem, none, content)));
  let curves = null;

  const draw = eventually(async () => {
    let compared;
    try {
      [compared, curves] = await Promise.all([
        get(`api/compare?runs=${ids.join(",")}`),
        get(`api/curves?${new URLSearchParams({ runs: ids.join(","), metric: METRIC })}`),
      ]);
    } catch (failure) {
      return complain(failure.message);
    }
    complain();
    const { runs: found, settings, groups } = compared;
    content.hidden = !found.length;
    none.hidden = found.length > 0;
    if (!found.length) return;
    // What has not changed stays, and with it the focus and what was enlarged.
    const names = curves.groups.map((group) => [group.id, group.label]);
    renew(final, [groups, names], () => scores(groups, new Map(names)));
    renew(settled, [found.map(({ name }) => name), settings, params.get("all")], () => differences(found, settings));
    if (!drawn?.update(curves)) paint();
  });

  function paint() {
    if (!curves) return;
    drawn?.destroy();
    plot.replaceChildren();
    const zoomed = (range) => set("zoom", zoomText(range));
    drawn = chart(context, plot, curves, { metric: METRIC, axis: "epoch", index, pick: () => {}, zoom: zoomOf(params), zoomed });
  }

  function scores(groups, names) {
    const row = (group) => h("tr", {},
      h("th", { scope: "row" }, h("span", { class: "label" }, swatch(index(group)), h("span", {}, breakable(names.get(group.id) ?? group.game ?? "–")))),
      h("td", { class: "number" }, group.scores.length),
      h("td", { class: "number" }, h("strong", {}, number(group.score?.value))),
      h("td", {}, interval(group.score)),
      h("td", { class: "number" }, percent(group.progress?.value)),
      h("td", {}, dots(group, groups)));
    return h("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Final scores" }, h("table", { class: "scores" },
      h("caption", { class: "unseen" }, "Mean return of the newest evaluation of each run, with 95% intervals over seeds"),
      h("thead", {}, h("tr", {}, [["Runs"], ["Seeds", "number"], ["Mean score", "number"], ["95% interval"], ["Progress", "number"], ["Each seed"]]
        .map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
      h("tbody", {}, groups.map(row))));
  }

  const interval = (estimate) => (estimate?.interval ? `${number(estimate.interval[0])} to ${number(estimate.interval[1])}` : h("span", { class: "quiet" }, "one seed"));

  /** Every seed's score, the mean and its interval on an axis that all groups of a game share. */
  function dots(group, groups) {
    const all = groups.filter((other) => other.game === group.game).flatMap((other) => other.scores);
    if (!group.scores.length) return "–";
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const x = (value) => 8 + (184 * (value - low)) / (high - low || 1);
    const series = `series-${index(group) % COLOURS}`;
    const drawing = svg("svg", { class: "dots", viewBox: "0 0 200 24", role: "img", "aria-label": `Scores: ${group.scores.map(number).join(", ")}` },
      svg("line", { class: "axis", x1: 4, x2: 196, y1: 12, y2: 12 }));
    const [from, to] = group.score.interval ?? [group.score.value, group.score.value];
    drawing.append(svg("line", { class: series, x1: x(from), x2: x(to), y1: 12, y2: 12, "stroke-width": 5, "stroke-opacity": 0.4, "stroke-linecap": "round" }));
    for (const score of group.scores) drawing.append(svg("circle", { class: series, cx: x(score), cy: 12, r: 4, "fill-opacity": 0.25 }));
    drawing.append(svg("line", { class: series, x1: x(group.score.value), x2: x(group.score.value), y1: 4, y2: 20, "stroke-width": 3 }));
    return drawing;
  }

  function differences(found, settings) {
    const all = params.get("all") === "1";
    const differing = settings.filter((setting) => setting.differs);
    const shown = all ? settings : differing;
    const same = settings.length - differing.length;
    const toggle = h("label", { class: "check" }, h("input", {
      type: "checkbox", checked: all, onchange: (event) => { set("all", event.target.checked ? "1" : ""); draw(); },
    }), `Show the ${counted(same, "setting")} that are the same, too`);
    // Settings have single precision: 0.0002 is 0.00019999999494757503 as a number of the page.
    const rounded = (_, value) => (typeof value === "number" ? Number(value.toPrecision(7)) : value);
    const text = (value) => (value == null ? "–" : typeof value === "string" ? value : JSON.stringify(value, rounded));
    const table = h("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Settings" }, h("table", { class: "settings" },
      h("caption", { class: "unseen" }, "Settings of the runs"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), found.map((run) => h("th", { scope: "col" }, run.name)))),
      h("tbody", {}, shown.map((setting) => h("tr", { class: setting.differs && all ? "differs" : null },
        h("th", { scope: "row", title: setting.meaning }, h("code", {}, breakable(setting.key)), setting.differs && all ? h("span", { class: "unseen" }, " (differs)") : null),
        setting.values.map((value) => h("td", {}, text(value))))))));
    return [
      toggle,
      shown.length ? table : h("p", { class: "quiet" }, found.length > 1 ? "All settings are the same." : "Choose a second run to see differences."),
    ];
  }

  function follow() {
    close();
    close = live(ids, (change) => { if (change.runs.length) draw(); });
  }
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", paint);
  follow();
  busy(root, draw());
  return () => {
    close();
    scheme.removeEventListener("change", paint);
    drawn?.destroy();
  };
}
