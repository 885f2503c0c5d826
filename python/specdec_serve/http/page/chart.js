// A small chart: how many tokens each of the last steps brought.

import { byId, draw } from "./dom.js";

const NUM_BARS = 24;
const BAR = 4; // width of a bar with its gap
const HEIGHT = 20;

/** Draws the last of `lengths`, tokens of steps in order; nothing without any. */
export function showChart(lengths) {
  const last = lengths.slice(-NUM_BARS);
  const most = Math.max(4, ...last); // so that steps of one token stay low
  const svg = draw("svg", {
    viewBox: `0 0 ${NUM_BARS * BAR} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `Tokens of the last ${last.length} steps: ${last.join(", ")}`,
  });
  last.forEach((length, i) => {
    const height = (HEIGHT * length) / most;
    svg.append(draw("rect", { x: i * BAR, y: HEIGHT - height, width: BAR - 1, height }));
  });
  byId("chart").replaceChildren(svg);
  byId("chart").hidden = last.length === 0;
}
