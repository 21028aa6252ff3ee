// Probabilities as small bars that can also be read.

import { percent } from "./words.js";

/** A list of bars with these names. `set` takes one probability for each, and the number of the one to mark. */
export function bars(h, caption, names) {
  const rows = names.map((name) => {
    const value = h("span", { class: "value" }, "–");
    const fill = h("span", { class: "fill" });
    return { item: h("li", {}, h("span", { class: "name" }, name), h("span", { class: "track", "aria-hidden": "true" }, fill), value), value, fill };
  });
  const element = h("div", { class: "bars" }, h("h3", {}, caption), h("ul", {}, rows.map(({ item }) => item)));
  return {
    element,
    set(shares, marked) {
      rows.forEach(({ item, value, fill }, i) => {
        const share = shares?.[i];
        value.textContent = share == null ? "–" : percent(share);
        fill.style.width = `${100 * (share ?? 0)}%`;
        item.toggleAttribute("data-marked", i === marked);
      });
    },
  };
}
