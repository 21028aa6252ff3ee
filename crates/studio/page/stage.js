// Where a game is played: canvases side by side, and keys, gamepad and buttons that act in it. Play and Teach share it.

import { Keys, called, padParts } from "./keys.js";
import { panel, problems } from "./parts.js";
import { draw, fitAll } from "./pixels.js";
import { open } from "./session.js";

const PANELS = [
  ["game", "Game", "the real game"],
  ["seen", "What the agent sees", "the game after encoding and decoding"],
  ["dream", "Dream", "what the world model imagines"],
];
/** Pictures per second at most, where fast changes are unwanted. */
const CALM = 3;

/** Whether the focus is where keys mean something else. */
function busy(target, code) {
  if (target.closest("input, select, textarea, [role=toolbar]")) return true;
  return (code === "Space" || code === "Enter") && target.closest("button, a, summary");
}

/**
 * A stage in `root`. `on` hears `begun(session)`, `shown(moment)`, `saved(message)` and `command(name)`; settings are what the server
 * is told: rate, auto, policy, eyes, temperature, horizon.
 */
export function stage({ h, say }, settings, on) {
  const panels = PANELS.map(([name, caption, meaning]) => panel(h, caption, meaning, name));
  const buttons = h("div", { class: "pad", role: "group", "aria-label": "Actions" });
  const { problem, complain } = problems(h);
  const screen = h("div", { class: "panels" }, panels.map(({ figure }) => figure));
  const state = { keys: null, session: null, newest: null, begin: null, connection: null, waiting: false, touched: null, held: null, calm: false };
  let [scheduled, drawn, left] = [false, 0, false];

  const send = (message) => state.connection?.send(message);
  const tell = () => send({ type: "settings", ...settings });

  function connect() {
    state.connection?.close();
    state.connection = open({
      session(message) {
        state.session = message;
        state.keys = new Keys(message.game, message.actions);
        complain("");
        makeButtons();
        on.begun(message);
        tell();
      },
      moment(moment) {
        state.waiting = false;
        state.newest = moment;
        if (!scheduled) {
          scheduled = true;
          requestAnimationFrame(paint);
        }
        on.arrived?.(moment);
      },
      saved: (message) => on.saved?.(message),
      problem({ message }) {
        state.waiting = false;
        settings.auto = false;
        complain(message);
        on.changed?.();
      },
      closed() {
        settings.auto = false;
        complain("The connection to the studio is closed. Start again when it runs.");
        on.changed?.();
      },
    });
  }

  /** Begins a session: `begin` is a message of type start. */
  function start(begin) {
    state.begin = begin;
    connect();
    send({ type: "start", ...begin });
  }

  function paint(now) {
    scheduled = false;
    if (left || !state.newest) return;
    if (state.calm && settings.auto && now - drawn < 1000 / CALM) {
      scheduled = true;
      requestAnimationFrame(paint);
      return;
    }
    drawn = now;
    const { images } = state.newest;
    panels.forEach(({ canvas, figure }, i) => {
      figure.hidden = !images[i];
      if (images[i]) draw(canvas, images[i].height, images[i].width, images[i].bytes);
    });
    resize();
    on.shown(state.newest);
  }

  function resize() {
    const shown = panels.filter(({ figure }) => !figure.hidden);
    fitAll(shown, screen, shown.length, 448);
  }

  /** Says what a canvas shows; only when things stand still. */
  function describe(texts) {
    panels.forEach(({ canvas, caption, meaning }, i) => canvas.setAttribute("aria-label", `${caption}: ${texts[i] ?? meaning}`));
  }

  function makeButtons() {
    const { keys, session } = state;
    buttons.replaceChildren(...session.actions.map((name, action) => {
      const button = h("button", { type: "button", "data-action": action }, h("span", {}, name.toLowerCase()),
        h("kbd", {}, keys.of(action).slice(0, 2).map(called).join(" ")));
      button.addEventListener("pointerdown", (event) => {
        button.setPointerCapture(event.pointerId);
        press(action);
      });
      for (const end of ["pointerup", "pointercancel"]) button.addEventListener(end, () => release());
      // Keyboards and screen readers click.
      button.addEventListener("click", (event) => { if (event.detail === 0) { press(action); release(); } });
      return button;
    }));
  }

  function press(action) {
    state.touched = action;
    act(false);
  }

  function release() {
    state.touched = null;
    act(false);
  }

  /** What is held now, by key, finger or gamepad. */
  const wanted = () => state.touched ?? state.keys?.action(padParts()) ?? null;

  /** Lets what is held act: for as long as it is held, or once where every step waits for somebody. */
  function act(repeated) {
    const action = wanted();
    const before = state.held;
    state.held = action;
    for (const button of buttons.children) button.toggleAttribute("data-held", Number(button.dataset.action) === action);
    if (!state.session) return;
    if (settings.auto) {
      if (action !== before) send({ type: "hold", action });
      return;
    }
    if (before != null && action == null) send({ type: "hold", action: null });
    // A key that repeats waits for the step before.
    if (action != null && (action !== before || repeated) && !(repeated && state.waiting)) step(action);
  }

  function step(action = null) {
    state.waiting = true;
    send({ type: "step", action });
  }

  const COMMANDS = { Period: "pause", KeyE: "step", KeyB: "back", Backspace: "back", Enter: "reset", KeyP: "reality", KeyR: "record" };

  function keydown(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || busy(event.target, event.code)) return;
    if (state.keys?.knows(event.code)) {
      event.preventDefault();
      const repeated = state.keys.down.has(event.code);
      state.keys.down.add(event.code);
      act(repeated);
    } else if (COMMANDS[event.code]) {
      event.preventDefault();
      on.command(COMMANDS[event.code]);
    }
  }

  function keyup(event) {
    if (state.keys?.down.delete(event.code)) act(false);
  }

  function blur() {
    state.keys?.down.clear();
    act(false);
  }

  // Gamepads have no events for their sticks.
  let pads = padParts().join();
  const poll = setInterval(() => {
    const now = padParts().join();
    if (now !== pads) {
      pads = now;
      act(false);
    }
  }, 16);

  const listeners = [[document, "keydown", keydown], [document, "keyup", keyup], [window, "blur", blur], [window, "resize", resize]];
  listeners.forEach(([target, name, listener]) => target.addEventListener(name, listener));

  return {
    state, panels, screen, buttons, problem, start, send, tell, step, describe, complain, makeButtons, say,
    leave() {
      left = true;
      clearInterval(poll);
      listeners.forEach(([target, name, listener]) => target.removeEventListener(name, listener));
      state.connection?.close();
    },
  };
}
