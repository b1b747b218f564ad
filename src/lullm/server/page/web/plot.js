// A line of the last minute.

import { sharp, styleOf } from "/page/map.js";

const SPAN_S = 60;

/** The next round number. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class Plot {
  /** `unit`: behind the number at the axis. */
  constructor(canvas, unit) {
    this.canvas = canvas;
    this.unit = unit;
    this.points = [];
  }

  /** `time` in seconds; `value` null leaves a gap; `mark`: a dot, or null. */
  add(time, value, mark = null) {
    this.points.push({ time, value, mark });
    while (this.points[0].time < time - SPAN_S - 2) this.points.shift();
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    if (!width || !this.points.length) return;
    const context = sharp(this.canvas, width, height);
    const [line, muted, accent] = ["--line", "--muted", "--accent"].map(styleOf);
    const most = roundUp(Math.max(1, ...this.points.map((p) => Math.max(p.value ?? 0, p.mark ?? 0))));
    const end = this.points.at(-1).time, bottom = height - 3, top = 14;
    const x = (p) => width - ((end - p.time) / SPAN_S) * width;
    const y = (value) => bottom - (value / most) * (bottom - top);
    context.strokeStyle = line;
    context.lineWidth = 1;
    for (const level of [0, most]) {
      context.beginPath();
      context.moveTo(0, y(level) + 0.5);
      context.lineTo(width, y(level) + 0.5);
      context.stroke();
    }
    context.fillStyle = muted;
    context.font = "11px system-ui, sans-serif";
    context.fillText(`${most} ${this.unit}`, 0, top - 4);
    for (const run of runs(this.points)) {
      context.beginPath();
      run.forEach((p, i) => (i ? context.lineTo(x(p), y(p.value)) : context.moveTo(x(p), y(p.value))));
      context.strokeStyle = accent;
      context.lineWidth = 1.8;
      context.lineJoin = "round";
      context.stroke();
      context.lineTo(x(run.at(-1)), bottom);
      context.lineTo(x(run[0]), bottom);
      context.globalAlpha = 0.12;
      context.fillStyle = accent;
      context.fill();
      context.globalAlpha = 1;
    }
    context.fillStyle = accent;
    for (const p of this.points) {
      if (p.mark === null) continue;
      context.beginPath();
      context.arc(x(p), y(p.mark), 2.6, 0, 7);
      context.fill();
    }
  }
}

/** The stretches without gaps. */
function runs(points) {
  const found = [[]];
  for (const p of points) {
    if (p.value !== null) found.at(-1).push(p);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((run) => run.length > 1);
}
