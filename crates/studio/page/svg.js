// Drawings that need no canvas.

/** An SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Colours that people who see no red or green can tell apart. Dashes tell them apart without colours. */
export const COLOURS = 7;
export const DASHES = [[], [9, 4], [2, 4], [10, 4, 2, 4]];

export const colour = (index) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--series-${index % COLOURS}`).trim();
export const dash = (index) => DASHES[index % DASHES.length];

/** The line that stands for a series. */
export function swatch(index) {
  const line = svg("line", {
    x1: 0, y1: 6, x2: 28, y2: 6, "stroke-width": 3, "stroke-dasharray": dash(index).join(" "),
    class: `series-${index % COLOURS}`,
  });
  return svg("svg", { class: "swatch", viewBox: "0 0 28 12", "aria-hidden": "true" }, line);
}

/** A small curve of some numbers. */
export function spark(values) {
  const drawing = svg("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (values.length < 2) return drawing;
  const low = Math.min(...values);
  const range = Math.max(...values) - low || 1;
  const points = values.map((value, i) => `${(100 * i) / (values.length - 1)},${22 - (20 * (value - low)) / range}`);
  drawing.append(svg("polyline", { points: points.join(" ") }));
  return drawing;
}
