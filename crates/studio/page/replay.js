// Replay: everything that a run has seen, step by step, with the dream of the same stretch beside it.

import { busy, field, panel, problems, recorded } from "./parts.js";
import { bytes, difference, draw, fitAll } from "./pixels.js";
import { counted, number } from "./words.js";

export const title = "Replay";

/** Frames that are asked for together. */
const CHUNK = 32;
/** Half of a slider's thumb: its middle is never nearer to an end. */
const THUMB = 8;
/** Steps of a dream. */
const DREAMT = 32;
/** Steps whose surprise is asked for together, and at most. */
const SURPRISES = 128;
const MOST_SURPRISES = 2048;
const SOURCES = { replay: "the replay", train: "kept of training", evaluation: "kept of evaluation", imagination: "kept of imagination" };

export async function show(root, context) {
  const { h, params, setParams, get, say } = context;
  const runs = (await get("api/runs")).filter(({ kind }) => kind === "run");
  if (!runs.length) {
    root.append(h("p", { class: "card empty" }, "There is no run yet whose episodes could be shown."));
    return () => {};
  }
  const { id, runChooser, episodeChooser, scrub, stranger, offer, mark } = recorded(h, "replay", context, runs, { openRun, openEpisode, go });
  const sort = h("select", { id: id("sort"), onchange: () => {
    sort.value === "newest" ? params.delete("order") : params.set("order", sort.value);
    setParams(params);
    listEpisodes();
  } },
    [["newest", "newest first"], ["best", "best first"], ["worst", "worst first"], ["longest", "longest first"]].map(([value, text]) => h("option", { value }, text)));
  if (["best", "worst", "longest"].includes(params.get("order"))) sort.value = params.get("order");
  const { problem, complain } = problems(h);
  const [real, dreamed, error] = [panel(h, "Recorded", "what happened"), panel(h, "Dream", "the same actions in the world model"), panel(h, "Difference", "bright where they differ")];
  const scrubOut = h("output", { for: id("step") }, "");
  const marks = h("canvas", { class: "marks", role: "img", "aria-label": "Rewards, ends and surprise along the episode", height: 40 });
  const legend = h("p", { class: "quiet" }, "");
  const told = h("p", { class: "told-line" }, "");
  const play = h("button", { type: "button", class: "primary", onclick: () => toggle() }, "Play");
  const jumps = h("div", { class: "controls", role: "group", "aria-label": "Jump" });
  const from = h("a", { class: "button", href: "#/play" }, "Play from here");
  const lookAt = h("a", { class: "button", href: "#/look" }, "Look at this frame");
  const dreamButton = h("button", { type: "button", onclick: () => dream() }, "Dream from here");
  const surpriseButton = h("button", { type: "button", onclick: () => measure() }, "Measure surprise");
  const screen = h("div", { class: "panels" }, real.figure, dreamed.figure, error.figure);
  let [episodes, episode, step, timer, left] = [[], null, 0, null, false];
  let frames = new Map();
  let loading = new Set();
  let dreamt = null;
  let surprise = [];

  const path = (rest = "") => `api/replay/${runChooser.value}/${episodeChooser.value}${rest}`;

  async function openRun() {
    pauseNow();
    complain();
    try {
      episodes = await get(`api/replay/${runChooser.value}`);
    } catch (failure) {
      episodes = [];
      complain(failure.message);
    }
    await listEpisodes();
  }

  function listEpisodes() {
    const orders = { newest: () => 0, best: (a, b) => b.total - a.total, worst: (a, b) => a.total - b.total, longest: (a, b) => (b.length ?? 0) - (a.length ?? 0) };
    const wanted = episodeChooser.value || params.get("episode");
    const groups = Object.entries(SOURCES).map(([source, text]) => {
      const own = episodes.filter((one) => one.source === source).sort(orders[sort.value]);
      const label = (one) => [one.source === "replay" ? `from step ${one.id.slice(7)}` : `epoch ${one.epoch}`, `return ${number(one.total)}`, one.length && counted(one.length, "step"), one.ended ? null : "goes on"].filter(Boolean).join(", ");
      return own.length ? h("optgroup", { label: text }, own.map((one) => h("option", { value: one.id }, label(one)))) : null;
    });
    offer(groups.filter(Boolean), episodes, wanted);
    if (episodes.length) return openEpisode([null, episodeChooser.value].includes(params.get("episode")) ? Number(params.get("step") ?? 0) : 0);
    else complain(problem.textContent || "This run has seen nothing yet: wait for its first epoch.");
  }

  async function openEpisode(first) {
    pauseNow();
    complain();
    [frames, loading, dreamt, surprise, episode] = [new Map(), new Set(), null, [], null];
    try {
      episode = await get(path());
    } catch (failure) {
      return complain(failure.message);
    }
    if (left) return;
    const { rewards } = episode;
    scrub.max = rewards.length - 1;
    const jump = (text, to) => h("button", { type: "button", class: "small", disabled: to == null, onclick: () => go(to) }, text);
    const at = (wanted) => { const found = rewards.indexOf(wanted); return found < 0 ? null : found; };
    const [high, low] = [Math.max(...rewards), Math.min(...rewards)];
    jumps.replaceChildren(
      jump("Best step", high > 0 ? at(high) : null), jump("Worst step", low < 0 ? at(low) : null),
      h("button", { type: "button", class: "small", onclick: () => go(next(1)) }, "Next reward"),
      h("button", { type: "button", class: "small", onclick: () => go(next(-1)) }, "Previous reward"),
      h("button", { type: "button", class: "small", onclick: surprising }, "Most surprising step"),
      jump("End", rewards.length - 1));
    go(Math.min(first, rewards.length - 1));
    say(`Episode of ${counted(rewards.length, "step")}, return ${number(rewards.reduce((sum, one) => sum + one, 0))}`);
  }

  const next = (way) => {
    for (let at = step + way; at >= 0 && at < episode.rewards.length; at += way) if (episode.rewards[at]) return at;
    return step;
  };

  /** Frames around a step; those of a step that nobody looks at any more come later. */
  async function load(wanted) {
    const chunk = Math.floor(wanted / CHUNK);
    if (frames.has(wanted) || loading.has(chunk)) return;
    const [own, count] = [episode, Math.min(CHUNK, episode.rewards.length - chunk * CHUNK)];
    loading.add(chunk);
    try {
      const buffer = await bytes(path(`/frames?from=${chunk * CHUNK}&count=${count}`));
      if (own !== episode) return;
      const size = own.size * own.size * 3;
      for (let i = 0; i < count; i++) frames.set(chunk * CHUNK + i, new Uint8Array(buffer, i * size, size));
      // What is far away is forgotten.
      for (const key of frames.keys()) if (Math.abs(key - wanted) > 16 * CHUNK) { frames.delete(key); loading.delete(Math.floor(key / CHUNK)); }
      paint();
    } catch (failure) {
      loading.delete(chunk);
      if (own === episode) complain(failure.message);
    }
  }

  function go(wanted) {
    if (!episode) return;
    step = Math.min(Math.max(wanted, 0), episode.rewards.length - 1);
    mark(step);
    load(step);
    if (step % CHUNK > CHUNK / 2 && step + CHUNK < episode.rewards.length) load(step + CHUNK);
    paint();
  }

  function paint() {
    if (!episode || left) return;
    const { size, actions, rewards, names } = episode;
    const frame = frames.get(step);
    if (frame) draw(real.canvas, size, size, frame);
    const other = dreamt?.episode === episode ? dreamt.frames[step - dreamt.from] : null;
    dreamed.figure.hidden = !other;
    error.figure.hidden = !(other && frame);
    if (other) draw(dreamed.canvas, size, size, other);
    if (other && frame) {
      const [picture, mean] = difference(frame, other);
      draw(error.canvas, size, size, picture);
      error.note.textContent = `mean ${(100 * mean).toFixed(1)}%`;
      dreamed.note.textContent = `${step - dreamt.from} steps from reality`;
    }
    fitAll([real, dreamed, error], screen, other ? 3 : 1, 448);
    scrubOut.textContent = `${step} of ${rewards.length - 1}`;
    const to = rewards.slice(0, step + 1).reduce((sum, one) => sum + one, 0);
    const total = rewards.reduce((sum, one) => sum + one, 0);
    const last = step === rewards.length - 1 && (episode.terminated ? ", then the game was over" : episode.truncated ? ", then it was cut off" : "");
    told.textContent = `Action ${(names[actions[step]] ?? actions[step]).toString().toLowerCase()}, reward ${number(rewards[step])}; return so far ${number(to)}, to go ${number(total - to)}${surprise[step] != null ? `; surprise ${surprise[step].toFixed(2)} nats per token` : ""}${last || ""}`;
    real.canvas.setAttribute("aria-label", `Recorded: step ${step}, ${told.textContent}`);
    const query = `run=${runChooser.value}&episode=${episodeChooser.value}&step=${step}`;
    from.href = `#/play?${query}`;
    lookAt.href = `#/look?${query}`;
    drawMarks();
  }

  function drawMarks() {
    const { rewards } = episode;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name);
    const width = Math.max(100, Math.round(marks.clientWidth || scrub.clientWidth));
    marks.width = width;
    const pen = marks.getContext("2d");
    // Under the middle of the thumb at that step.
    const x = (at) => THUMB + (at / Math.max(rewards.length - 1, 1)) * (width - 2 * THUMB);
    const known = surprise.filter((one) => one != null);
    const most = Math.max(...known, 1e-6);
    pen.fillStyle = colour("--series-3");
    surprise.forEach((one, at) => one != null && pen.fillRect(x(at) - Math.max(width / rewards.length, 1) / 2, 40 - 26 * (one / most), Math.max(width / rewards.length - 0.5, 1), 26 * (one / most)));
    rewards.forEach((reward, at) => {
      if (!reward) return;
      pen.fillStyle = colour(reward > 0 ? "--series-2" : "--series-1");
      // Up for a reward, down for a penalty: colour is not all there is.
      pen.beginPath();
      const [tip, base] = reward > 0 ? [0, 10] : [10, 0];
      pen.moveTo(x(at), tip);
      pen.lineTo(x(at) - 4, base);
      pen.lineTo(x(at) + 4, base);
      pen.fill();
    });
    if (dreamt?.episode === episode) {
      pen.fillStyle = colour("--accent");
      pen.fillRect(x(dreamt.from), 12, x(dreamt.from + dreamt.frames.length - 1) - x(dreamt.from) + 1, 3);
    }
    pen.fillStyle = colour("--bad");
    if (episode.terminated || episode.truncated) pen.fillRect(x(rewards.length - 1) + 2, 0, 3, 40);
    pen.fillStyle = colour("--text");
    pen.fillRect(x(step) - 1, 0, 2, 40);
    const rewarded = rewards.filter((one) => one > 0).length;
    legend.textContent = `▲ ${counted(rewarded, "reward")}, ▼ ${rewards.filter((one) => one < 0).length} penalties${known.length ? `, bars: surprise of ${counted(known.length, "step")}, up to ${most.toFixed(2)} nats per token` : ""}`;
  }

  async function dream() {
    const [own, start] = [episode, step];
    const count = Math.min(DREAMT, own.rewards.length - start);
    dreamButton.disabled = true;
    try {
      const buffer = await bytes(path(`/dream?from=${start}&count=${count}`));
      const size = own.size * own.size * 3;
      const all = Array.from({ length: buffer.byteLength / size }, (_, i) => new Uint8Array(buffer, i * size, size));
      dreamt = { episode: own, from: start, frames: all };
      paint();
      say(`Dreamt ${counted(all.length, "step")}${all.length < count ? "; then the dream ended" : ""}`);
    } catch (failure) {
      complain(failure.message);
    }
    dreamButton.disabled = false;
  }

  /** Asks for the surprise of the whole episode, part by part. */
  async function measure() {
    const own = episode;
    surpriseButton.disabled = true;
    try {
      for (let at = 0; at < Math.min(own.rewards.length, MOST_SURPRISES) && own === episode && !left; at += SURPRISES) {
        const count = Math.min(SURPRISES, own.rewards.length - at);
        if (surprise[at + count - 1] != null) continue;
        const part = await get(path(`/surprise?from=${at}&count=${count}`));
        if (own !== episode) break;
        part.surprise.forEach((value, i) => { surprise[at + i] = value; });
        paint();
      }
    } catch (failure) {
      complain(failure.message);
    }
    surpriseButton.disabled = false;
  }

  async function surprising() {
    await measure();
    let best = 0;
    surprise.forEach((value, at) => { if ((value ?? -1) > (surprise[best] ?? -1)) best = at; });
    go(best);
  }

  function toggle() {
    if (timer) return pauseNow();
    const pace = matchMedia("(prefers-reduced-motion: reduce)").matches ? 250 : 80;
    timer = setInterval(() => (step + 1 < (episode?.rewards.length ?? 0) ? frames.has(step + 1) ? go(step + 1) : load(step + 1) : pauseNow()), pace);
    play.textContent = "Pause";
  }

  function pauseNow() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function keydown(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    const to = { ArrowLeft: step - 1, ArrowRight: step + 1, PageUp: step - 10, PageDown: step + 10, Home: 0, End: scrub.max }[event.key];
    if (to != null && episode) {
      event.preventDefault();
      go(Number(to));
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const at = episodeChooser.selectedIndex + (event.key === "ArrowUp" ? -1 : 1);
      if (episodeChooser.options[at]) {
        event.preventDefault();
        episodeChooser.selectedIndex = at;
        openEpisode(0);
      }
    } else if (event.key === ".") {
      toggle();
    }
  }

  root.append(
    h("div", { class: "tools" }, field(h, "Run", runChooser), field(h, "Episode", episodeChooser), field(h, "Order", sort)),
    stranger,
    problem,
    screen,
    told,
    h("div", { class: "timeline" },
      h("div", { class: "field" }, h("span", { class: "labels" }, h("label", { for: scrub.id }, "Step"), scrubOut), h("div", { class: "track" }, scrub, marks)), legend),
    h("div", { class: "controls" }, play, dreamButton, surpriseButton, from, lookAt),
    jumps,
    h("p", { class: "quiet" }, h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " one step, ", h("kbd", {}, "PgUp"), " ", h("kbd", {}, "PgDn"), " ten, ", h("kbd", {}, "↑"), " ", h("kbd", {}, "↓"), " another episode, ", h("kbd", {}, "."), " play or pause."));
  dreamed.figure.hidden = error.figure.hidden = true;
  document.addEventListener("keydown", keydown);
  addEventListener("resize", paint);
  busy(root, openRun());
  return () => {
    left = true;
    pauseNow();
    document.removeEventListener("keydown", keydown);
    removeEventListener("resize", paint);
  };
}
