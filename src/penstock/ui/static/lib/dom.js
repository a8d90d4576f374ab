// What every part of the page imports of the vendored libraries.
import { h, render, Fragment, Component } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { h, render, Fragment, Component };
export { useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback } from "../vendor/preact-hooks.js";
export { signal, computed, effect, batch } from "../vendor/signals.js";
// Children become text nodes: nothing that comes from a message is ever parsed as markup.
export const html = htm.bind(h);
