// What this program is, and the machine it runs on.

import { counted } from "./words.js";

export const title = "About";

const size = (bytes) => (bytes < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`);

export async function show(root, { get, h }) {
  const about = await get("api/about");
  const built = about.games.filter((game) => game.built);
  const missing = about.games.length - built.length;
  const facts = [
    ["Version", `iris ${about.version}`],
    ["Folder", h("code", {}, about.folder)],
    ["Device", about.gpu ? about.device : `CPU, ${counted(about.threads, "thread")}, ${about.instructions}`],
    ["System", about.system],
    ["Memory", about.memory ? `this program ${size(about.memory.used)}; ${size(about.memory.free)} of ${size(about.memory.total)} free` : "–"],
    ["Games", `${built.map((game) => game.name).join(", ")}${missing ? `; ${missing} more need a build with Atari` : ""}`],
    ["Check", ["Run ", h("code", {}, "iris doctor"), " in a terminal to test processor, GPU, libraries and ROMs."]],
  ];
  root.append(
    h("p", { class: "lead" }, "An agent that learns a world model of a game and learns to play inside it."),
    h("dl", { class: "card facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("h2", {}, "Licences"),
    h("p", {}, "iris is under the MIT licence. Curves are drawn by uPlot, © Leon Sorokin, ", h("a", { href: "vendor/uplot/LICENSE" }, "also under the MIT licence"), "."));
  return () => {};
}
