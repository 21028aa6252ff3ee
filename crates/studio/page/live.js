// What changes on the server while a screen is open.

/** Calls `changed({list, runs})` when the list of runs or the metrics of these runs have changed. Returns a function that ends it. */
export function live(runs, changed) {
  const stream = new EventSource(`api/live?runs=${runs.join(",")}`);
  stream.addEventListener("changed", (event) => changed(JSON.parse(event.data)));
  return () => stream.close();
}

/** Calls `work` soon, once for many calls, and never twice at a time. */
export function eventually(work) {
  let running = false;
  let again = false;
  return async function go() {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      do {
        again = false;
        await work();
      } while (again);
    } finally {
      // What went wrong once may go well the next time.
      running = false;
    }
  };
}
