// Modules that are large, and loaded where something is drawn with them.
const loaded = new Map();

// Loads a module of the folder vendor. While the gateway does not answer it is tried again, by another address each
// time: a browser may remember that the first one failed.
export function vendor(name) {
  if (!loaded.has(name)) loaded.set(name, load(`../vendor/${name}.js`));
  return loaded.get(name);
}

async function load(path) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await import(tries === 1 ? path : `${path}?${tries}`);
    } catch {
      await new Promise((done) => { setTimeout(done, Math.min(30000, 500 * 2 ** tries)); });
    }
  }
}
