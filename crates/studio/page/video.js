// Records canvases as a video, in the browser.

const KINDS = ["video/mp4;codecs=avc1.42E01E", "video/mp4", "video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm"];
/** Encoders fail on tiny pictures. */
const SIDE = 320;
const PATIENCE = 5000;

/** What this browser can record; null if nothing. */
export function kind() {
  return globalThis.MediaRecorder ? KINDS.find((one) => MediaRecorder.isTypeSupported(one)) ?? null : null;
}

/** Begins a recording of canvases side by side. `draw` is called after each step, `stop` gives the video and the ending of its name. */
export function record(canvases) {
  const type = kind();
  const picture = document.createElement("canvas");
  picture.width = SIDE * canvases.length;
  picture.height = SIDE;
  const context = picture.getContext("2d");
  context.imageSmoothingEnabled = false;
  const draw = () => canvases.forEach((canvas, i) => context.drawImage(canvas, i * SIDE, 0, SIDE, SIDE));
  draw();
  const recorder = new MediaRecorder(picture.captureStream(30), { mimeType: type, videoBitsPerSecond: 4e6 });
  const parts = [];
  recorder.addEventListener("dataavailable", ({ data }) => data.size && parts.push(data));
  recorder.start(250);
  const stop = () => new Promise((resolve, reject) => {
    const finish = () => {
      clearTimeout(late);
      if (parts.length) resolve({ blob: new Blob(parts, { type }), ending: type.includes("mp4") ? "mp4" : "webm" });
      else reject(new Error("The browser's encoder gave no video: record a GIF instead."));
    };
    // Some encoders fail without a word.
    const late = setTimeout(finish, PATIENCE);
    recorder.addEventListener("stop", finish, { once: true });
    recorder.addEventListener("error", finish, { once: true });
    if (recorder.state === "inactive") finish();
    else recorder.stop();
  });
  return { draw, stop };
}

/** Has the browser save something. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
