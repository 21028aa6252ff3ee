// A session of play over a WebSocket: see crates/studio/src/play/mod.rs for its messages.

/** Opens a session. `on` hears `session`, `moment`, `saved`, `problem` and `closed`. */
export function open(on) {
  const address = new URL("api/play", location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  address.hash = "";
  const socket = new WebSocket(address);
  socket.binaryType = "arraybuffer";
  const waiting = [];
  let left = false;
  const send = (message) => {
    const text = JSON.stringify(message);
    if (socket.readyState === WebSocket.OPEN) socket.send(text);
    else if (socket.readyState === WebSocket.CONNECTING) waiting.push(text);
  };
  socket.addEventListener("open", () => waiting.splice(0).forEach((text) => socket.send(text)));
  socket.addEventListener("message", ({ data }) => {
    if (left) return;
    if (typeof data !== "string") return on.moment(moment(data));
    const message = JSON.parse(data);
    on[message.type]?.(message);
  });
  socket.addEventListener("close", () => left || on.closed());
  return {
    send,
    close() {
      left = true;
      socket.close();
    },
  };
}

/** A step: its facts, and `{ height, width, bytes }` of the game, its reconstruction and the dream, or null. */
function moment(buffer) {
  const view = new DataView(buffer);
  const length = view.getUint32(8, true);
  const facts = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 24, length)));
  let at = 24 + length;
  const images = [12, 16, 20].map((place) => {
    const [height, width] = [view.getUint16(place, true), view.getUint16(place + 2, true)];
    const bytes = new Uint8Array(buffer, at, height * width * 3);
    at += bytes.length;
    return height ? { height, width, bytes } : null;
  });
  return { facts, images };
}
