// Look: what the networks make of a recorded frame.

import { busy, field, panel, problems, recorded } from "./parts.js";
import { bytes, difference, draw, fit, fitAll, heat, withObject } from "./pixels.js";
import { counted, number, percent } from "./words.js";

export const title = "Look";

export async function show(root, context) {
  const { h, params, setParams, get, say } = context;
  const runs = (await get("api/runs")).filter(({ kind }) => kind === "run");
  if (!runs.length) {
    root.append(h("p", { class: "card empty" }, "There is no run yet into whose agent one could look."));
    return () => {};
  }
  const { id, runChooser, episodeChooser, scrub, stranger, offer, mark } = recorded(h, "look", context, runs, { openRun, openEpisode, go });
  const scrubOut = h("output", { for: id("step") }, "");
  const { problem, complain } = problems(h);
  const panels = [panel(h, "Original", "the frame"), panel(h, "Reconstruction", "the frame after encoding and decoding"), panel(h, "Error", "bright where they differ")];
  const screen = h("div", { class: "panels" }, panels.map(({ figure }) => figure));
  const shade = h("select", { id: id("shade"), onchange: () => { keep("shade", shade.value === "surprise" ? "" : shade.value); tokens(); } },
    [["surprise", "surprise"], ["probability", "probability"], ["code", "code"]].map(([value, text]) => h("option", { value }, text)));
  const grid = h("div", { class: "grid-tokens", role: "grid", "aria-label": "Tokens of the frame" });
  const chosenText = h("p", { class: "told-line", "aria-live": "polite" }, "");
  const layer = h("select", { id: id("layer"), onchange: () => { keep("layer", layer.value); attention(); } });
  const head = h("select", { id: id("head"), onchange: () => { keep("head", head.value); attention(); } });
  const back = h("div", { class: "back" });
  const codes = h("div", {});
  const codebookButton = h("button", { type: "button", onclick: () => codebook() }, "Count codes in the newest frames");
  let [length, step, seen, weights, chosen, left, turn] = [0, 0, null, null, Math.max(Number(params.get("token") ?? 1) - 1, 0) || 0, false, 0];
  if (["probability", "code"].includes(params.get("shade"))) shade.value = params.get("shade");

  function keep(key, value) {
    value ? params.set(key, value) : params.delete(key);
    setParams(params);
  }

  async function openRun() {
    complain();
    codes.replaceChildren();
    try {
      const episodes = await get(`api/replay/${runChooser.value}`);
      const label = (one) => `${one.source === "replay" ? `replay, from step ${one.id.slice(7)}` : `${one.source}, epoch ${one.epoch}`}, return ${number(one.total)}`;
      const wanted = params.get("episode");
      offer(episodes.map((one) => h("option", { value: one.id }, label(one))), episodes, wanted);
      if (!episodes.length) return complain("This run has seen nothing yet: wait for its first epoch.");
      await openEpisode(wanted == null || episodeChooser.value === wanted ? Number(params.get("step") ?? 0) : 0);
    } catch (failure) {
      complain(failure.message);
    }
  }

  async function openEpisode(first) {
    try {
      const episode = await get(`api/replay/${runChooser.value}/${episodeChooser.value}`);
      length = episode.rewards.length;
      scrub.max = length - 1;
      await go(Math.min(first, length - 1));
    } catch (failure) {
      complain(failure.message);
    }
  }

  async function go(wanted) {
    step = Math.min(Math.max(wanted, 0), length - 1);
    scrubOut.textContent = `${step} of ${length - 1}`;
    mark(step);
    const mine = ++turn;
    try {
      const buffer = await bytes(`api/look/${runChooser.value}/${episodeChooser.value}/${step}`);
      // Somebody may have gone on.
      if (mine !== turn || left) return;
      const [object, at] = withObject(buffer);
      const size = object.size * object.size * 3;
      chosen = Math.min(chosen, object.tokens.length - 1);
      seen = { ...object, frame: new Uint8Array(buffer, at, size), kept: new Uint8Array(buffer, at + size, size) };
      weights = null;
      complain();
      paint();
      if (seen.before > 0) {
        const more = await bytes(`api/look/${runChooser.value}/${episodeChooser.value}/${step}/attention`);
        if (mine !== turn || left) return;
        const [shape, where] = withObject(more);
        weights = { ...shape, all: new Float32Array(more, where) };
        pickers();
      }
      attention();
    } catch (failure) {
      if (mine === turn) complain(failure.message);
    }
  }

  function paint() {
    const { size, frame, kept } = seen;
    const [error, mean] = difference(frame, kept);
    [frame, kept, error].forEach((picture, i) => draw(panels[i].canvas, size, size, picture));
    panels[2].note.textContent = `mean ${(100 * mean).toFixed(2)}%`;
    resize();
    tokens();
    const surprise = seen.surprises ? seen.surprises.reduce((sum, one) => sum + one, 0) / seen.surprises.length : null;
    panels[1].note.textContent = surprise == null ? "" : `surprise ${surprise.toFixed(2)} nats per token`;
  }

  function resize() {
    fitAll(panels, screen, 3, 320);
  }

  /** From 0 to 1, or null. */
  function share(i) {
    if (shade.value === "code") return seen.tokens[i] / Math.max(seen.vocabulary - 1, 1);
    if (!seen.probabilities) return null;
    return shade.value === "probability" ? seen.probabilities[i] : Math.min(seen.surprises[i] / Math.log(seen.vocabulary), 1);
  }

  function tokens() {
    if (!seen) return;
    grid.style.gridTemplateColumns = `repeat(${seen.grid}, minmax(2.75rem, 4.5rem))`;
    const cell = (i) => {
      const value = share(i);
      const words = [`code ${seen.tokens[i]}`, seen.probabilities && `probability ${percent(seen.probabilities[i])}`, seen.surprises && `surprise ${seen.surprises[i].toFixed(2)} nats`].filter(Boolean);
      const button = h("button", { type: "button", role: "gridcell", class: "token", tabindex: i === chosen ? 0 : -1, "aria-label": `Row ${Math.floor(i / seen.grid) + 1}, column ${(i % seen.grid) + 1}: ${words.join(", ")}`, "aria-selected": i === chosen ? "true" : "false", onclick: () => choose(i) },
        h("strong", {}, seen.tokens[i]), h("small", {}, seen.probabilities ? percent(seen.probabilities[i]) : ""));
      if (value != null) {
        const [red, green, blue] = heat(value);
        button.style.background = `rgb(${red} ${green} ${blue})`;
        button.style.color = value > 0.65 ? "#111" : "#fff";
      }
      return button;
    };
    const rows = Array.from({ length: seen.grid }, (_, row) =>
      h("div", { role: "row", class: "row" }, Array.from({ length: seen.grid }, (_, column) => cell(row * seen.grid + column))));
    grid.replaceChildren(...rows);
    describe();
  }

  function choose(i) {
    chosen = i;
    keep("token", i ? String(i + 1) : "");
    tokens();
    grid.querySelectorAll("[role=gridcell]")[i].focus();
    attention();
  }

  function describe() {
    const i = Math.min(chosen, seen.tokens.length - 1);
    const likely = seen.likeliest?.[i];
    chosenText.textContent = seen.probabilities
      ? `Token ${i + 1}: code ${seen.tokens[i]} was expected with ${percent(seen.probabilities[i])} (surprise ${seen.surprises[i].toFixed(2)} nats); the likeliest code was ${likely[0]} with ${percent(likely[1])}.`
      : `Token ${i + 1}: code ${seen.tokens[i]}. It is the first frame of the episode, so nothing was expected of it.`;
  }

  grid.addEventListener("keydown", (event) => {
    if (!seen) return;
    const way = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -seen.grid, ArrowDown: seen.grid }[event.key];
    const next = chosen + (way ?? 0);
    if (way == null || next < 0 || next >= seen.tokens.length) return;
    event.preventDefault();
    event.stopPropagation();
    choose(next);
  });

  function pickers() {
    for (const [select, count, name] of [[layer, weights.layers, "layer"], [head, weights.heads, "head"]]) {
      const numbers = Array.from({ length: count }, (_, i) => h("option", { value: i + 1 }, `${name} ${i + 1}`));
      select.replaceChildren(h("option", { value: "" }, `mean of all ${name}s`), ...numbers);
      select.value = params.get(name) ?? "";
      if (select.selectedIndex < 0) select.selectedIndex = 0;
    }
  }

  /** Where the world model looked to predict the chosen token, frame by frame. */
  function attention() {
    if (!seen) return;
    describe();
    if (!weights) {
      back.replaceChildren(h("p", { class: "quiet" }, seen.before > 0 ? "…" : "Nothing came before this frame."));
      return;
    }
    const { layers, heads, tokens: k, keys, steps, all } = weights;
    const some = (select, count) => (select.value === "" ? [...Array(count).keys()] : [Number(select.value) - 1]);
    const row = new Float64Array(keys);
    const [ls, hs] = [some(layer, layers), some(head, heads)];
    for (const l of ls) for (const one of hs) {
      const start = ((l * heads + one) * k + chosen) * keys;
      for (let p = 0; p < keys; p++) row[p] += all[start + p] / (ls.length * hs.length);
    }
    const most = Math.max(...row);
    const frames = [];
    for (let t = 0; t < steps; t++) {
      const canvas = h("canvas", { class: "map", role: "img", width: seen.grid, height: seen.grid });
      const part = row.slice(t * (k + 1), t * (k + 1) + k);
      const picture = new Uint8Array(k * 3);
      part.forEach((value, i) => picture.set(heat(Math.sqrt(value / most)), i * 3));
      for (let i = part.length; i < k; i++) picture.set([40, 40, 44], i * 3);
      draw(canvas, seen.grid, seen.grid, picture);
      fit(canvas, 72);
      const sum = part.reduce((total, value) => total + value, 0);
      const action = row[t * (k + 1) + k] ?? 0;
      const name = t === steps - 1 ? "this frame" : `${counted(steps - 1 - t, "step")} before`;
      canvas.setAttribute("aria-label", `${name}: ${percent(sum)} of the attention${t < steps - 1 ? `, its action ${percent(action)}` : ""}`);
      frames.push(h("figure", { class: "past" }, canvas, h("figcaption", {}, name, h("br"), `frame ${percent(sum)}`, t < steps - 1 ? [h("br"), `action ${percent(action)}`] : null)));
    }
    back.replaceChildren(...frames);
  }

  async function codebook() {
    codebookButton.disabled = true;
    try {
      const { frames, uses, used } = await get(`api/look/${runChooser.value}/codebook`);
      const total = uses.reduce((sum, one) => sum + one, 0) || 1;
      const entropy = -uses.reduce((sum, one) => sum + (one ? (one / total) * Math.log(one / total) : 0), 0);
      const order = uses.map((count, code) => [count, code]).sort((a, b) => b[0] - a[0]);
      const canvas = h("canvas", { class: "marks", role: "img", height: 80, width: 600, "aria-label": `${used} of ${uses.length} codes are used` });
      const pen = canvas.getContext("2d");
      pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--series-0");
      order.forEach(([count], i) => pen.fillRect((i / uses.length) * 600, 80 - 80 * (count / order[0][0]), Math.max(600 / uses.length - 1, 0.5), 80 * (count / order[0][0])));
      codes.replaceChildren(
        h("p", {}, `${used} of ${uses.length} codes are used in ${counted(frames, "frame")}; perplexity ${Math.exp(entropy).toFixed(1)}. From the most to the least frequent:`),
        canvas,
        h("details", {}, h("summary", {}, "As a table"), h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Code"), h("th", { scope: "col" }, "Uses"))),
          h("tbody", {}, order.filter(([count]) => count).map(([count, code]) => h("tr", {}, h("td", {}, code), h("td", {}, count)))))));
      say(`${used} of ${uses.length} codes are used`);
    } catch (failure) {
      complain(failure.message);
    }
    codebookButton.disabled = false;
  }

  function keydown(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea, [role=grid]")) return;
    const to = { ArrowLeft: step - 1, ArrowRight: step + 1, PageUp: step - 10, PageDown: step + 10 }[event.key];
    if (to == null) return;
    event.preventDefault();
    go(to);
  }

  root.append(
    h("div", { class: "tools" }, field(h, "Run", runChooser), field(h, "Episode", episodeChooser), field(h, "Step", scrub, scrubOut)),
    stranger, problem, screen,
    h("h2", {}, "Tokens"),
    h("div", { class: "tools" }, field(h, "Colour by", shade)),
    grid, chosenText,
    h("h2", {}, "Attention"),
    h("p", { class: "quiet" }, "Where the world model looked to predict the chosen token: brighter is more."),
    h("div", { class: "tools" }, field(h, "Layer", layer), field(h, "Head", head)),
    back,
    h("h2", {}, "Codebook"),
    codebookButton, codes);
  document.addEventListener("keydown", keydown);
  addEventListener("resize", resize);
  busy(root, openRun());
  return () => {
    left = true;
    document.removeEventListener("keydown", keydown);
    removeEventListener("resize", resize);
  };
}
