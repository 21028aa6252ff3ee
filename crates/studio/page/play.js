// Play: the game, what the agent sees of it, and the dream, side by side from the same frame with the same actions.

import { bars } from "./bars.js";
import { called } from "./keys.js";
import { eventually, live } from "./live.js";
import { field, released, unknown } from "./parts.js";
import { copy } from "./pixels.js";
import { stage } from "./stage.js";
import { kind, record, save } from "./video.js";
import { number } from "./words.js";

export const title = "Play";

const REWARDS = ["penalty", "none", "reward"];
/** Pictures in the timeline. */
const MOST_THUMBS = 40;
const THUMB = 48;

export async function show(root, context) {
  const { h, params, setParams, get, say } = context;
  const [runs, games] = await Promise.all([get("api/runs"), get("api/games")]);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const from = (name, other) => (params.get(name) == null ? other : Number(params.get(name)));
  const settings = {
    rate: from("rate", still ? 4 : 12), auto: false, policy: params.get("hand") == null,
    eyes: params.get("eyes") === "dream" ? "dream" : "game",
    temperature: from("temperature", 0.5), horizon: from("horizon", 0),
  };
  const on = { begun, shown, arrived, command, changed: () => controls() };
  const scene = stage(context, settings, on);
  scene.state.calm = still;
  const thumbs = [];
  let [every, video] = [1, null];

  // ---- what is played ----
  const agents = runs.filter((run) => run.kind === "agent" || run.epoch != null || run.state !== "imported");
  const chooser = h("select", { id: "play-agent", onchange: choose },
    agents.map((run) => h("option", { value: run.id }, run.name)),
    h("option", { value: "" }, "no agent: the game by hand"));
  const gameChooser = h("select", { id: "play-game", onchange: choose }, games.map(({ name }) => h("option", { value: name }, name)));
  const seed = h("input", { id: "play-seed", type: "number", min: 0, step: 1, value: params.get("seed") ?? "0", onchange: choose });
  const gameField = field(h, "Game", gameChooser);
  if (agents.some(({ id }) => id === params.get("run"))) chooser.value = params.get("run");
  else if (params.get("run")) ["episode", "step"].forEach((key) => params.delete(key));
  if (params.get("run") === "") chooser.value = "";
  if (params.get("env")) gameChooser.value = params.get("env");

  const stranger = h("div", {}, unknown(h, "run", params.get("run"), agents.map(({ id }) => id)));

  function choose() {
    stranger.replaceChildren();
    params.delete("episode");
    params.delete("step");
    begin();
  }

  function begin() {
    const run = agents.find(({ id }) => id === chooser.value);
    gameField.hidden = run?.kind === "run";
    params.set("run", chooser.value);
    if (gameField.hidden) params.delete("env");
    else params.set("env", gameChooser.value);
    params.set("seed", seed.value);
    setParams(params);
    const message = { seed: Math.max(0, Math.floor(Number(seed.value) || 0)) };
    if (run) message.run = run.id;
    if (!gameField.hidden) message.env = gameChooser.value;
    if (params.get("episode")) message.from = { kind: "episode", episode: params.get("episode"), step: Number(params.get("step") ?? 0) };
    clearThumbs(-1);
    scene.start(message);
  }

  // ---- controls ----
  const pause = h("button", { type: "button", class: "primary", onclick: () => command("pause") });
  const button = (text, key, name, label) => h("button", { type: "button", title: label, onclick: () => command(name) }, text, h("kbd", {}, key));
  const stepButton = button("Step", "e", "step", "One step");
  const backButton = button("Back", "b", "back", "One step back");
  const resetButton = button("New game", "⏎", "reset", "Start again from the first frame");
  const realityButton = button("Put reality back", "p", "reality", "Show the dream the real frame");
  const slider = (id, label, attributes, key, text) => {
    const out = h("output", { for: id }, text(settings[key]));
    const input = h("input", { id, type: "range", ...attributes, value: settings[key], oninput: () => {
      settings[key] = Number(input.value);
      out.textContent = text(settings[key]);
      params.set(key, input.value);
      setParams(params);
      scene.tell();
    } });
    released(input);
    return field(h, label, input, out);
  };
  const choice = (id, label, options, value, change) => {
    const select = h("select", { id, onchange: () => change(select.value) }, options.map(([name, text]) => h("option", { value: name }, text)));
    select.value = value;
    return field(h, label, select);
  };
  const calm = h("input", { type: "checkbox", onchange: () => { scene.state.calm = calm.checked; } });
  calm.checked = still;

  function controls() {
    pause.replaceChildren(settings.auto ? "Pause" : "Play", h("kbd", {}, "."));
    const session = scene.state.session;
    realityButton.hidden = !(session?.dream && session?.real);
  }

  function change(key, value) {
    settings[key] = value;
    scene.tell();
  }

  function command(name) {
    const facts = scene.state.newest?.facts;
    if (name === "pause") {
      change("auto", !settings.auto);
      say(settings.auto ? "Playing" : "Paused");
    } else if (name === "step") {
      change("auto", false);
      scene.step();
    } else if (name === "back" && facts) {
      look(Math.max(facts.first, facts.step - 1));
    } else if (name === "reset") {
      begin();
    } else if (name === "reality") {
      scene.send({ type: "reality" });
    } else if (name === "record") {
      toggleVideo();
    }
    controls();
  }

  function look(step) {
    if (settings.auto) change("auto", false);
    scene.send({ type: "show", step });
    controls();
  }

  // ---- what a step told ----
  const facts = h("dl", { class: "told" });
  const told = {};
  for (const [name, text] of [["step", "Step"], ["action", "Action"], ["total", "Return of the game"], ["dreamt", "Return of the dream"], ["value", "Value"], ["window", "Context window"]]) {
    told[name] = h("dd", {}, "–");
    facts.append(h("div", {}, h("dt", {}, text), told[name]));
  }
  const charts = h("div", { class: "charts-small" });
  let [actionBars, rewardBars, endBars] = [null, null, null];
  const slide = h("p", { class: "slid", hidden: true }, "The context window is full: the world model forgot the older half of its steps.");
  let slidAt = null;

  function begun(session) {
    actionBars = bars(h, "Policy", session.actions.map((name) => name.toLowerCase()));
    rewardBars = bars(h, "Reward in the dream", REWARDS);
    endBars = bars(h, "End of the dream", ["over"]);
    charts.replaceChildren(...(session.dream ? [actionBars, rewardBars, endBars] : []).map(({ element }) => element));
    facts.hidden = false;
    rules.textContent = session.rules;
    newest.textContent = session.epoch == null ? "" : `The agent after epoch ${session.epoch}.`;
    newer.hidden = true;
    follow(session);
    if (!session.real) scene.panels[2].note.textContent = "The game cannot be played again from here: the dream goes on alone.";
    for (const link of files.querySelectorAll("a")) link.href = `api/play/${session.id}/${link.dataset.file}`;
    clearThumbs(-1);
    showKeys();
    controls();
    say(`${session.game} has begun. Press the period key to play or pause.`);
  }

  function shown({ facts: now }) {
    const session = scene.state.session;
    const { game, dream, policy } = now;
    const expected = dream?.expected;
    told.step.textContent = now.step;
    told.action.textContent = now.action == null ? "–" : `${session.actions[now.action].toLowerCase()} (${now.by})`;
    told.total.textContent = game ? number(game.total) : "–";
    told.dreamt.textContent = dream ? number(dream.total) : "–";
    const inDream = settings.eyes === "dream" || game?.over;
    const eyes = inDream ? expected?.policy ?? policy : policy ?? expected?.policy;
    told.value.textContent = eyes ? number(eyes.value) : "–";
    told.window.textContent = dream ? `${dream.remembered} of ${dream.window} steps` : "–";
    actionBars?.set(eyes?.probabilities, scene.state.held ?? -1);
    rewardBars?.set(expected?.rewards, expected ? Math.sign(dream.reward) + 1 : -1);
    endBars?.set(expected ? [expected.end] : null, dream?.over ? 0 : -1);
    if (dream?.slid) slidAt = now.step;
    slide.hidden = slidAt == null || now.step < slidAt || now.step > slidAt + 3;
    scene.panels[0].note.textContent = game?.over ? "game over" : game?.reward ? `reward ${number(game.reward)}` : "";
    if (session.real || !dream) scene.panels[2].note.textContent = dreamNote(dream);
    scene.panels.forEach(({ figure, name }) => {
      figure.toggleAttribute("data-reward", (name === "dream" ? dream?.reward : game?.reward) > 0);
      figure.toggleAttribute("data-penalty", (name === "dream" ? dream?.reward : game?.reward) < 0);
      figure.toggleAttribute("data-over", Boolean(name === "dream" ? dream?.over : game?.over));
      figure.toggleAttribute("data-given", name === "dream" && Boolean(dream?.given));
    });
    scrub.min = now.first;
    scrub.max = now.last;
    scrub.value = now.step;
    scrubOut.textContent = `${now.step} of ${now.last}`;
    thumb(now);
    video?.draw();
    if (!settings.auto) {
      const result = [game && `return ${number(game.total)}${game.over ? ", game over" : ""}`, dream && `dream ${dreamNote(dream) || "goes on"}`];
      say(`Step ${now.step}. ${result.filter(Boolean).join(", ")}`);
      scene.describe([game && `step ${game.steps}, return ${number(game.total)}${game.over ? ", over" : ""}`, null, dream && `${dream.dreamt} dreamt steps, return ${number(dream.total)}`]);
    }
  }

  function arrived() {
    controls();
  }

  function dreamNote(dream) {
    if (!dream) return "";
    if (dream.over) return "the dream has ended";
    if (dream.given) return dream.dreamt === 0 ? "shown reality" : "";
    return dream.reward ? `reward ${number(dream.reward)}` : `${dream.dreamt} steps from reality`;
  }

  // ---- timeline ----
  const scrub = h("input", { id: "play-scrub", type: "range", min: 0, max: 0, value: 0, step: 1, oninput: () => look(Number(scrub.value)) });
  released(scrub);
  const scrubOut = h("output", { for: "play-scrub" }, "");
  const strip = h("div", { class: "strip", role: "toolbar", "aria-label": "Earlier steps: branch from one" });
  strip.addEventListener("keydown", (event) => {
    const at = thumbs.findIndex(({ element }) => element === document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: thumbs.length - 1 }[event.key];
    if (next == null || !thumbs[next]) return;
    event.preventDefault();
    thumbs.forEach(({ element }, i) => element.setAttribute("tabindex", i === next ? 0 : -1));
    thumbs[next].element.focus();
  });

  function clearThumbs(after) {
    while (thumbs.length && thumbs.at(-1).step > after) thumbs.pop().element.remove();
    if (!thumbs.length) every = 1;
  }

  function thumb(now) {
    clearThumbs(now.last);
    thumbs.forEach(({ step, element }) => element.toggleAttribute("data-now", step === now.step));
    if (now.step % every || thumbs.some(({ step }) => step === now.step) || now.step < (thumbs.at(-1)?.step ?? -1)) return;
    const canvas = h("canvas", { "aria-hidden": "true" });
    const source = scene.panels.findLast(({ figure }) => !figure.hidden);
    if (!source) return;
    copy(source.canvas, canvas, THUMB);
    const chosen = (event) => {
      look(now.step);
      // Who points at a picture goes on with the keys of the game, not with those of the row of pictures.
      if (event.detail) event.currentTarget.blur();
    };
    const element = h("button", { type: "button", class: "thumb", tabindex: thumbs.length ? -1 : 0, "aria-label": `Step ${now.step}`, onclick: chosen },
      canvas, h("span", {}, now.step));
    strip.append(element);
    if (now.step === now.last) strip.scrollLeft = strip.scrollWidth;
    thumbs.push({ step: now.step, element });
    if (thumbs.length > MOST_THUMBS) {
      every *= 2;
      thumbs.filter(({ step }) => step % every).forEach(({ element }) => element.remove());
      thumbs.splice(0, thumbs.length, ...thumbs.filter(({ step }) => step % every === 0));
    }
  }

  // ---- recording ----
  const files = h("div", { class: "files" },
    [["recording.gif", "GIF"], ["recording.png", "PNG strip"], ["recording.npz", "NumPy arrays"]].map(([file, text]) =>
      h("a", { class: "button", "data-file": file, href: "#", download: file, onclick: range }, text)));
  const videoButton = h("button", { type: "button", hidden: kind() == null, onclick: toggleVideo }, "Record video", h("kbd", {}, "r"));

  /** A recording goes back as far as its kind allows. */
  function range(event) {
    const link = event.currentTarget;
    const last = scene.state.newest?.facts.step ?? 0;
    const most = { "recording.gif": 600, "recording.png": 100 }[link.dataset.file] ?? 1e6;
    const address = new URL(link.href);
    address.search = `?from=${Math.max(0, last - most + 1)}&to=${last}&pace=${Math.round(settings.rate)}`;
    link.href = address;
  }

  async function toggleVideo() {
    if (!video) {
      if (kind() == null) return scene.complain("This browser records no videos: choose a GIF.");
      video = record(scene.panels.filter(({ figure }) => !figure.hidden).map(({ canvas }) => canvas));
      videoButton.replaceChildren("Stop and save", h("kbd", {}, "r"));
      videoButton.setAttribute("aria-pressed", "true");
      say("Recording");
      return;
    }
    const finished = video;
    video = null;
    videoButton.replaceChildren("Record video", h("kbd", {}, "r"));
    videoButton.setAttribute("aria-pressed", "false");
    try {
      const { blob, ending } = await finished.stop();
      save(blob, `iris-play.${ending}`);
      say("Video saved");
    } catch (error) {
      scene.complain(error.message);
    }
  }

  // ---- keys ----
  const keyList = h("ul", { class: "keys" });

  function showKeys() {
    const { keys, session } = scene.state;
    keyList.replaceChildren(...session.actions.map((name, action) => {
      const shown = h("span", {}, keys.of(action).map((code) => h("kbd", {}, called(code))));
      const button = h("button", { type: "button", class: "small", "aria-label": `Change the key of ${name.toLowerCase()}`, onclick: () => {
        button.textContent = "Press a key";
        const take = (event) => {
          event.preventDefault();
          event.stopPropagation();
          if (event.code !== "Escape") keys.change(action, event.code);
          showKeys();
          scene.makeButtons();
          keyList.children[action].querySelector("button").focus();
        };
        button.addEventListener("keydown", take, { once: true });
      } }, "Change");
      return h("li", {}, h("span", { class: "name" }, name.toLowerCase()), shown, button);
    }));
  }

  const rules = h("p", { class: "lead" }, "");
  const newest = h("span", { class: "quiet" }, "");
  const newer = h("button", { type: "button", hidden: true, onclick: begin });
  let unfollow = () => {};

  /** A run that trains has another agent after its next epoch. */
  function follow({ epoch }) {
    unfollow();
    unfollow = () => {};
    const id = chooser.value;
    if (epoch == null || !id) return;
    const look = eventually(async () => {
      const run = (await get("api/runs").catch(() => [])).find((run) => run.id === id);
      if (id !== chooser.value || !(run?.epoch > epoch)) return;
      if (newer.hidden) say(`There is a newer agent, after epoch ${run.epoch}.`);
      newer.textContent = `Play with the agent after epoch ${run.epoch}`;
      newer.hidden = false;
    });
    unfollow = live([id], ({ runs }) => { if (runs.length) look(); });
  }
  root.append(
    rules,
    h("div", { class: "tools" }, field(h, "Agent", chooser), gameField, field(h, "Seed", seed), newest, newer),
    stranger,
    scene.problem,
    scene.screen,
    slide,
    h("div", { class: "controls", role: "group", "aria-label": "Controls" }, pause, stepButton, backButton, resetButton, realityButton),
    scene.buttons,
    h("div", { class: "timeline" }, field(h, "Step", scrub, scrubOut), strip),
    h("div", { class: "below" },
      h("section", { class: "card pane", "aria-label": "What this step told" }, facts, charts),
      h("section", { class: "card pane", "aria-label": "Settings" },
        h("div", { class: "tools" },
          slider("play-rate", "Steps per second", { min: 1, max: 60, step: 1 }, "rate", (value) => `${value}`),
          slider("play-horizon", "Show the dream reality after", { min: 0, max: 100, step: 1 }, "horizon", (value) => (value ? `${value} steps` : "never")),
          slider("play-temperature", "Temperature of the policy", { min: 0.1, max: 2, step: 0.1 }, "temperature", (value) => value.toFixed(1)),
          choice("play-who", "Without a key held", [["policy", "the policy acts"], ["nobody", "nobody acts"]], settings.policy ? "policy" : "nobody", (value) => { value === "policy" ? params.delete("hand") : params.set("hand", "1"); setParams(params); change("policy", value === "policy"); }),
          choice("play-eyes", "The policy looks at", [["game", "the game"], ["dream", "the dream"]], settings.eyes, (value) => { params.set("eyes", value); setParams(params); change("eyes", value); }),
          h("label", { class: "check" }, calm, "Calm: at most three pictures per second")),
        h("h3", {}, "Record the steps so far"), h("div", { class: "controls" }, files, videoButton),
        h("details", {}, h("summary", {}, "Keys"), h("p", {}, "Holding a key takes over from the policy; letting go gives it back. While paused, every key press is one step."), keyList))));
  controls();
  if (agents.length || games.length) begin();
  return () => {
    unfollow();
    scene.leave();
    video?.stop().catch(() => {});
  };
}
