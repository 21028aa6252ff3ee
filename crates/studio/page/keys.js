// Which key does what: the keys of directions and fire, digits for actions without such a name, a gamepad, and buttons for fingers.

const PARTS = ["up", "down", "left", "right", "fire"];
const USUAL = {
  ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", Space: "fire",
  KeyW: "up", KeyS: "down", KeyA: "left", KeyD: "right",
};
const STORE = "iris-keys";

/** What the name of an action consists of: "UPRIGHTFIRE" is up, right and fire. */
function parts(name) {
  const text = name.toLowerCase();
  return PARTS.filter((part) => text.includes(part));
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

/** A key as people call it. */
export function called(code) {
  const names = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Space: "space" };
  return names[code] ?? code.replace(/^(Key|Digit)/, "");
}

/** The keys of a game with these actions. */
export class Keys {
  constructor(game, names) {
    this.game = game;
    this.names = names;
    this.parts = names.map(parts);
    this.down = new Set();
    const known = new Set(this.parts.flat());
    /** Key to a part of names, or to the number of an action. */
    this.bound = {};
    for (const [code, part] of Object.entries(USUAL)) if (known.has(part)) this.bound[code] = part;
    names.slice(0, 9).forEach((_, action) => { this.bound[`Digit${action + 1}`] = action; });
    Object.assign(this.bound, stored()[game]);
  }

  knows(code) {
    return this.bound[code] != null;
  }

  /** The keys of an action alone. */
  of(action) {
    const own = this.parts[action];
    return Object.keys(this.bound).filter((code) =>
      this.bound[code] === action || (own.length === 1 && this.bound[code] === own[0]));
  }

  /** Gives an action another key, and keeps that in this browser. */
  change(action, code) {
    for (const old of this.of(action)) this.bound[old] = null;
    this.bound[code] = action;
    const all = stored();
    all[this.game] = this.bound;
    try {
      localStorage.setItem(STORE, JSON.stringify(all));
    } catch {
      // Then it holds until the page is left.
    }
  }

  /** The action of what is held down, with parts that a gamepad adds; null if nothing is. */
  action(more = []) {
    const held = [...this.down].map((code) => this.bound[code]).filter((bound) => bound != null);
    const chosen = held.filter((bound) => typeof bound === "number").pop();
    if (chosen != null) return chosen;
    const wanted = new Set([...held, ...more]);
    if (wanted.size === 0) return null;
    // The action with most of what is held, and nothing else.
    let best = null;
    this.parts.forEach((own, action) => {
      const fits = own.length > 0 && own.every((part) => wanted.has(part));
      if (fits && (best == null || own.length > this.parts[best].length)) best = action;
    });
    return best;
  }
}

/** What the sticks and buttons of gamepads are held to. */
export function padParts() {
  const found = new Set();
  for (const pad of navigator.getGamepads?.() ?? []) {
    if (!pad) continue;
    const pressed = (button) => pad.buttons[button]?.pressed;
    const [x = 0, y = 0] = pad.axes;
    if (x < -0.5 || pressed(14)) found.add("left");
    if (x > 0.5 || pressed(15)) found.add("right");
    if (y < -0.5 || pressed(12)) found.add("up");
    if (y > 0.5 || pressed(13)) found.add("down");
    if ([0, 1, 2, 3].some(pressed)) found.add("fire");
  }
  return [...found];
}
