// The blocks of one pool as a field of cells: a colour per request, a dot on what several sequences hold.

const CACHED = 1, FIRST_OWNER = 2, SHARED = 128;
const MOST_HEIGHT = 230;
const hues = new Map();

/** The hue of a request: neighbours differ by the golden angle. */
export function hueOf(id) {
  if (!hues.has(id)) hues.set(id, (250 + hues.size * 137.508) % 360);
  return hues.get(id);
}

/** Forget the colours of requests that have ended, once there are many. */
export function forgetHues(ids) {
  if (hues.size < 2000) return;
  for (const id of hues.keys()) if (!ids.has(id)) hues.delete(id);
}

export const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const ownerColour = (id) => `oklch(${styleOf("--owner-light")} ${styleOf("--owner-chroma")} ${hueOf(id)})`;

/** A context with the canvas as sharp as the screen. */
export function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export class BlockMap {
  /** `say`: gets a sentence on the cell under the pointer or the cursor. */
  constructor(canvas, label, say) {
    this.canvas = canvas;
    this.label = label;
    this.say = say;
    this.cells = new Uint8Array();
    this.names = [];
    this.cursor = null;
    this.pitch = 10;
    this.columns = 1;
    canvas.addEventListener("pointermove", (event) => {
      const x = Math.floor(event.offsetX / this.pitch), y = Math.floor(event.offsetY / this.pitch);
      this.point(x < this.columns ? y * this.columns + x : null);
    });
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      this.point(Math.min(Math.max((this.cursor ?? -move) + move, 0), this.cells.length - 1));
    });
  }

  /** Take a pool and the requests' names in the order of their numbers. */
  take(pool, names) {
    const text = atob(pool.cells);
    this.cells = new Uint8Array(pool.num_cells);
    for (let i = 0; i < text.length; i++) this.cells[i] = text.charCodeAt(i);
    this.pool = pool;
    this.names = names;
    this.draw();
  }

  owner(cell) {
    return cell < FIRST_OWNER ? null : this.names[(cell & ~SHARED) - FIRST_OWNER] ?? "others";
  }

  point(cell) {
    const at = cell !== null && cell >= 0 && cell < this.cells.length ? cell : null;
    if (at === this.cursor) return;
    this.cursor = at;
    this.draw();
    this.say(at === null ? "" : this.sentence(at));
  }

  sentence(at) {
    const cell = this.cells[at], per = this.pool.blocks_per_cell;
    const last = Math.min((at + 1) * per, this.pool.num_blocks) - 1;
    const name = per === 1 ? `Block ${at}` : `Blocks ${at * per} to ${last}`;
    if (cell === 0) return `${name}: free`;
    if (cell === CACHED) return `${name}: free, content kept for the prefix cache`;
    return `${name}: request ${this.owner(cell)}${cell & SHARED ? ", shared by several sequences" : ""}`;
  }

  draw() {
    const num = this.cells.length, width = this.canvas.clientWidth;
    if (!num) this.canvas.style.height = "0"; // of several models one has no engine
    if (!num || !width) return;
    for (this.pitch = 16; this.pitch > 3; this.pitch--) {
      this.columns = Math.floor(width / this.pitch);
      if (Math.ceil(num / this.columns) * this.pitch <= MOST_HEIGHT) break;
    }
    const height = Math.ceil(num / this.columns) * this.pitch;
    this.canvas.style.height = `${height}px`;
    const context = sharp(this.canvas, width, height);
    const gap = this.pitch > 5 ? 2 : 1, size = this.pitch - gap;
    const [free, cached, dot, line] = ["--free", "--cached", "--card", "--accent"].map(styleOf);
    const colours = new Map();
    const chosen = this.cursor === null ? null : this.owner(this.cells[this.cursor]);
    let used = 0, shared = 0, kept = 0;
    this.cells.forEach((cell, index) => {
      const x = (index % this.columns) * this.pitch, y = Math.floor(index / this.columns) * this.pitch;
      const owner = this.owner(cell);
      if (owner !== null && !colours.has(owner)) colours.set(owner, ownerColour(owner));
      context.fillStyle = owner !== null ? colours.get(owner) : cell === CACHED ? cached : free;
      context.globalAlpha = chosen !== null && owner !== chosen ? 0.35 : 1;
      context.beginPath();
      context.roundRect(x, y, size, size, Math.min(3, size / 4));
      context.fill();
      if (cell & SHARED) {
        context.fillStyle = dot;
        context.beginPath();
        context.arc(x + size / 2, y + size / 2, Math.max(size / 6, 0.8), 0, 7);
        context.fill();
      }
      if (index === this.cursor) {
        context.strokeStyle = line;
        context.lineWidth = 2;
        context.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
      }
      used += owner !== null;
      shared += (cell & SHARED) !== 0;
      kept += cell === CACHED;
    });
    context.globalAlpha = 1;
    const unit = this.pool.blocks_per_cell === 1 ? "blocks" : `cells of ${this.pool.blocks_per_cell} blocks`;
    this.canvas.setAttribute("aria-label", `${this.label}: of ${num} ${unit}, ${used} in use, ${shared} shared, ${kept} free with content kept`);
  }
}
