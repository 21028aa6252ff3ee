// Parts that several screens are made of.

/** A control under its label, beside which `more` stands. */
export function field(h, label, element, ...more) {
  return h("div", { class: "field" }, h("span", { class: "labels" }, h("label", { for: element.id }, label), more), element);
}

/** A frame under its caption, with a line below it. */
export function panel(h, caption, meaning, name = "") {
  const canvas = h("canvas", { role: "img", "aria-label": `${caption}: ${meaning}`, width: 64, height: 64 });
  const note = h("p", { class: "note" }, "");
  const figure = h("figure", { class: `panel ${name}` }, h("figcaption", {}, caption), h("div", { class: "frame" }, canvas), note);
  return { name, caption, meaning, canvas, note, figure };
}

/** Gives the keys back to the screen when a pointer lets go of a slider. */
export function released(slider) {
  slider.addEventListener("pointerup", () => slider.blur());
}

/** A place for what went wrong: `complain` shows it, or takes it away. */
export function problems(h) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const complain = (text) => {
    problem.textContent = text ?? "";
    problem.hidden = !text;
  };
  return { problem, complain };
}

/** Marks `root` as busy until what it shows has come. */
export function busy(root, work) {
  root.setAttribute("aria-busy", "true");
  work.finally(() => root.removeAttribute("aria-busy"));
}

/** What is said to somebody whose address names something that is not there (any more), instead of which something else is shown. */
export function unknown(h, what, name, known) {
  const missing = name && !known.includes(name);
  return missing ? h("p", { class: "problem", role: "alert" }, `There is no ${what} ${name}: it may have been deleted. What is shown is another one.`) : null;
}

/**
 * The controls of a screen that goes through recorded episodes, opened as its address says. `openRun()`, `openEpisode(step)` and `go(step)` are called
 * when another run, episode or step is chosen.
 */
export function recorded(h, screen, { params, setParams }, runs, { openRun, openEpisode, go }) {
  const id = (name) => `${screen}-${name}`;
  const runChooser = h("select", { id: id("run"), onchange: () => { strangers(); openRun(); } }, runs.map((run) => h("option", { value: run.id }, run.name)));
  const episodeChooser = h("select", { id: id("episode"), onchange: () => openEpisode(0) });
  const scrub = h("input", { id: id("step"), type: "range", min: 0, max: 0, step: 1, value: 0, oninput: () => go(Number(scrub.value)) });
  released(scrub);
  const stranger = h("div", {});
  const strangers = (...notes) => stranger.replaceChildren(...notes.filter(Boolean));
  const known = runs.map((run) => run.id);
  if (known.includes(params.get("run"))) runChooser.value = params.get("run");
  strangers(unknown(h, "run", params.get("run"), known));

  /** Offers the options of these episodes, and chooses `wanted` where it is among them. */
  function offer(options, episodes, wanted) {
    episodeChooser.replaceChildren(...options);
    const known = episodes.map((one) => one.id);
    if (known.includes(wanted)) episodeChooser.value = wanted;
    else if (runChooser.value === params.get("run") && known.length) strangers(unknown(h, "episode", wanted, known));
  }

  /** Puts the slider, and the address, at a step. */
  function mark(step) {
    scrub.value = step;
    params.set("run", runChooser.value);
    params.set("episode", episodeChooser.value);
    params.set("step", step);
    setParams(params);
  }

  return { id, runChooser, episodeChooser, scrub, stranger, offer, mark };
}

const shown = new WeakMap();
const controls = (place) => [...place.querySelectorAll("a[href], button, input, select, [tabindex]")];

/** Has `place` show what `make` makes of `facts`, anew only where they have changed. The focus stays, and how far something is scrolled. */
export function renew(place, facts, make) {
  const key = JSON.stringify(facts);
  if (shown.get(place) === key) return;
  shown.set(place, key);
  const focused = controls(place).indexOf(document.activeElement);
  const regions = () => place.querySelectorAll("[role=region]");
  const scrolled = [...regions()].map(({ scrollTop, scrollLeft }) => ({ top: scrollTop, left: scrollLeft, behavior: "instant" }));
  place.replaceChildren(...[make()].flat());
  regions().forEach((region, i) => region.scrollTo(scrolled[i] ?? {}));
  if (focused >= 0) controls(place)[focused]?.focus({ preventScroll: true });
}
