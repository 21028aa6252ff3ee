// Teach: play a game by hand, and keep it as episodes that a run can begin with.

import { field, released } from "./parts.js";
import { stage } from "./stage.js";
import { counted, number } from "./words.js";

export const title = "Teach";

const SIZES = [[32, "32 x 32 (the default agent)"], [64, "64 x 64 (the paper's)"]];

export async function show(root, context) {
  const { h, params, setParams, get, say, keepUnless } = context;
  const games = await get("api/games");
  const settings = { rate: Number(params.get("rate") ?? 8), auto: false, policy: false, eyes: "game", temperature: 1, horizon: 0 };
  const scene = stage(context, settings, { begun, shown, command, changed: () => controls(), saved });
  const chooser = h("select", { id: "teach-game", onchange: () => (given() ? begin() : (chooser.value = params.get("env"))) }, games.map(({ name }) => h("option", { value: name }, name)));
  if (params.get("env")) chooser.value = params.get("env");
  const size = h("select", { id: "teach-size", onchange: () => set("size", size.value) }, SIZES.map(([value, text]) => h("option", { value }, text)));
  if (SIZES.some(([value]) => value === Number(params.get("size")))) size.value = params.get("size");
  const rate = h("input", { id: "teach-rate", type: "range", min: 1, max: 30, value: settings.rate, oninput: () => {
    settings.rate = Number(rate.value);
    rateOut.textContent = rate.value;
    set("rate", rate.value);
    scene.tell();
  } });
  released(rate);
  const rateOut = h("output", { for: "teach-rate" }, settings.rate);
  let unsaved = 0;
  const rules = h("p", { class: "lead" }, "");
  const told = h("p", { class: "told-line" }, "");
  const kept = h("div", { class: "card pane", hidden: true });
  const pause = h("button", { type: "button", class: "primary", onclick: () => command("pause") });
  const backButton = h("button", { type: "button", onclick: () => command("back") }, "Take back", h("kbd", {}, "b"));
  const saveButton = h("button", { type: "button", disabled: true, onclick: () => {
    settings.auto = false;
    scene.tell();
    scene.send({ type: "save", size: Number(size.value) });
    saveButton.disabled = true;
    controls();
  } }, "Save as episodes");

  function set(key, value) {
    params.set(key, value);
    setParams(params);
  }

  /** What is asked before steps that were not saved are lost. */
  const question = () => (unsaved ? `${counted(unsaved, "step")} that you played are not saved. Throw them away?` : null);
  const given = () => !unsaved || confirm(question());

  function begin() {
    unsaved = 0;
    set("env", chooser.value);
    scene.start({ env: chooser.value, seed: Math.floor(Math.random() * 2 ** 31), from: { kind: "training" } });
  }

  function begun(session) {
    rules.textContent = session.rules;
    saveButton.disabled = true;
    controls();
    say(`${session.game} has begun. Every key press is one step; the period key lets time run.`);
  }

  function shown({ facts }) {
    const { game } = facts;
    told.textContent = `Game ${game.number + 1}, step ${game.steps}, return ${number(game.total)}${game.over ? ": over, the next key starts another" : ""}`;
    unsaved = facts.step;
    saveButton.disabled = facts.step === 0;
    if (!settings.auto) scene.describe([told.textContent]);
  }

  function command(name) {
    const facts = scene.state.newest?.facts;
    if (name === "pause") settings.auto = !settings.auto;
    if (name === "step") settings.auto = false;
    if (name === "pause" || name === "step") scene.tell();
    if (name === "step") scene.step();
    if (name === "back" && facts) {
      settings.auto = false;
      scene.tell();
      scene.send({ type: "show", step: Math.max(facts.first, facts.step - 1) });
    }
    if (name === "reset") {
      // Nothing is played while the question stands.
      settings.auto = false;
      scene.tell();
      if (given()) begin();
    }
    controls();
  }

  function saved({ episodes, steps, folder, command }) {
    kept.hidden = false;
    kept.replaceChildren(
      h("p", {}, `Saved ${counted(episodes, "episode")} with ${counted(steps, "step")} in `, h("code", {}, folder), ". A run that begins with them:"),
      h("p", {}, h("code", {}, command)));
    say(`Saved ${counted(episodes, "episode")}`);
    // What comes next belongs to another file.
    begin();
  }

  function controls() {
    pause.replaceChildren(settings.auto ? "Pause" : "Let time run", h("kbd", {}, "."));
  }

  root.append(
    rules,
    h("div", { class: "tools" }, field(h, "Game", chooser), field(h, "Frames", size), field(h, "Steps per second", rate, rateOut)),
    scene.problem, scene.screen, told, scene.buttons,
    h("div", { class: "controls" }, pause, backButton, saveButton),
    kept,
    h("p", { class: "quiet" }, "Steps that are taken back are not kept. Paused, every key press is one step."));
  controls();
  begin();
  keepUnless(question);
  return () => scene.leave();
}
