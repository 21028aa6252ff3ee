// Frames on canvases: RGB bytes, drawn pixel by pixel and enlarged by whole numbers.

/** Draws RGB bytes on a canvas, which takes their size. */
export function draw(canvas, height, width, bytes) {
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const image = new ImageData(width, height);
  const { data } = image;
  for (let from = 0, to = 0; from < bytes.length; from += 3, to += 4) {
    data[to] = bytes[from];
    data[to + 1] = bytes[from + 1];
    data[to + 2] = bytes[from + 2];
    data[to + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Shows a canvas as large as fits into `room` pixels of the page, every pixel of the frame by a whole number of the screen's. */
export function fit(canvas, room) {
  const fine = Math.max(devicePixelRatio, 1);
  const scale = Math.max(1, Math.floor((room * fine) / Math.max(canvas.width, 1))) / fine;
  canvas.style.width = `${canvas.width * scale}px`;
  canvas.style.height = `${canvas.height * scale}px`;
}

/** Shows panels in so many columns of `screen`, none of them wider than `most` pixels. */
export function fitAll(panels, screen, columns, most) {
  const gap = parseFloat(getComputedStyle(screen).columnGap) || 0;
  const { paddingLeft, borderLeftWidth } = getComputedStyle(panels[0]?.canvas.parentElement ?? screen);
  const border = 2 * (parseFloat(paddingLeft) + parseFloat(borderLeftWidth));
  const room = (screen.clientWidth + gap) / Math.max(columns, 1) - gap - border;
  panels.forEach(({ canvas }) => fit(canvas, Math.min(room, innerHeight * 0.5, most)));
}

/** Copies a canvas into another one of `side` pixels, without smoothing. */
export function copy(from, to, side) {
  to.width = side;
  to.height = side;
  const context = to.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(from, 0, 0, side, side);
}

/** Bytes from the server; an Error carries its message. */
export async function bytes(path, signal) {
  const answer = await fetch(path, { signal });
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Error(body?.error ?? `The studio answered ${answer.status}.`);
  }
  return answer.arrayBuffer();
}

/** A JSON object with its length before it, and where it ends. */
export function withObject(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  return [JSON.parse(text), 4 + length];
}

/** A colour of a scale that survives colour blindness, dark to bright, for a number from 0 to 1. */
export function heat(share) {
  const stops = [[13, 8, 60], [91, 20, 110], [180, 54, 96], [241, 120, 60], [252, 230, 120]];
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const at = Math.min(Math.floor(place), stops.length - 2);
  return stops[at].map((value, i) => Math.round(value + (place - at) * (stops[at + 1][i] - value)));
}

/** The difference of two frames as a picture, and its mean. */
export function difference(one, other) {
  const out = new Uint8Array(one.length);
  let sum = 0;
  for (let i = 0; i < one.length; i += 3) {
    let off = 0;
    for (let c = 0; c < 3; c++) off += Math.abs(one[i + c] - other[i + c]);
    sum += off;
    const colour = heat(Math.sqrt(off / 765));
    out.set(colour, i);
  }
  return [out, sum / one.length / 255];
}
