// Numbers and times for people.

/** Four significant digits; `–` for a number that is not there. */
export function number(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

export function percent(share) {
  return share == null ? "–" : `${Math.round(100 * share)}%`;
}

const UNITS = [["day", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** A time in its two largest units: "3 min 20 s". */
export function duration(seconds) {
  if (seconds == null) return "–";
  let rest = Math.max(0, Math.round(seconds));
  const first = UNITS.findIndex(([, size]) => rest >= size);
  if (first < 0) return "0 s";
  const parts = [];
  for (const [name, size] of UNITS.slice(first, first + 2)) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${count} ${name}${name === "day" && count > 1 ? "s" : ""}`);
  }
  return parts.join(" ");
}

/** How long ago a moment in seconds since 1970 was. */
export function ago(moment) {
  if (moment == null) return "–";
  const seconds = Date.now() / 1000 - moment;
  if (seconds < 5) return "now";
  const [name, size] = UNITS.find(([, size]) => seconds >= size);
  const count = Math.floor(seconds / size);
  return `${count} ${name}${name === "day" && count > 1 ? "s" : ""} ago`;
}

export const counted = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;

/** A name that may be broken after its underscores, slashes and dots. */
export const breakable = (name) => name.split(/(?<=[_/.])/).flatMap((part) => [part, document.createElement("wbr")]);
